"""The scales of some channels, in a kernel."""

import triton
import triton.language as tl


@triton.jit
def scales(scale, first, channels, COUNT: tl.constexpr):
    """Return those of COUNT channels from the first on, as a row."""
    channel = first + tl.arange(0, COUNT)
    return tl.load(scale + channel, mask=channel < channels, other=0.0)[None, :]
