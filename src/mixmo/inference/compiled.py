"""A network compiled for predictions: folded, in a lower precision if wanted, for batches of one size."""

import copy
from contextlib import nullcontext, suppress

import torch
from torch import Tensor, nn

from mixmo.inference.predict import default_batch
from mixmo.kernels.choice import cudnn_benchmark
from mixmo.kernels.devices import available, check_fp8
from mixmo.kernels.layer import FrozenConv3x3FP8
from mixmo.kernels.ops import CUDNN
from mixmo.kernels.quantisation import E4M3
from mixmo.kernels.remembered import choices
from mixmo.mixing.types import FeatureMixing
from mixmo.models.cost import layer_shapes
from mixmo.models.network import Ensemble
from mixmo.surgery.find import replace
from mixmo.surgery.fold import fold
from mixmo.surgery.layers import Copies
from mixmo.surgery.probe import Size, check_size, input_size
from mixmo.surgery.unwrap import unwrap_ensemble
from mixmo.utils.device import PRECISIONS, autocast
from mixmo.utils.errors import UserError, check_whole, unknown


def compile(
    net: Ensemble, *, precision: str = "bf16", batch_size: int | None = None, size: Size | None = None
) -> "Compiled":
    """Return a copy for fast predictions: folded, compiled by `torch.compile`, in a precision, for `mixmo.predict`.

    The first batch takes longer, while it compiles. In fp8, 3x3 convolutions without bias are computed from inputs and
    weights in e4m3, the rest in bfloat16; their weights are stored in e4m3. Evaluate the result on your test images:
    inputs are not scaled, which suits networks with batch normalisation before their convolutions.

    Args:
        net: A network of `mixmo.create`, `mixmo.wrap` or `mixmo.load`, on its device; it is left unchanged.
        precision: fp32, bf16, fp16, or fp8, which needs an NVIDIA GPU of compute capability 8.9 or higher.
        batch_size: Images per batch; smaller ones are padded, larger ones split. Chosen by the size of the images if
            None.
        size: (C, H, W) of the images; by default that of the network's metadata.

    Raises:
        UserError: If the device cannot compute in this precision.

    >>> import mixmo
    >>> net = mixmo.create("wrn10_1", classes=10, members=2)
    >>> fast = compile(net, precision="fp32", batch_size=64)
    >>> fast.num_heads, fast.members
    (2, 1)
    """
    net = unwrap_ensemble(net)
    check_uncompiled(net)
    if precision not in PRECISIONS:
        raise unknown("precision", precision, PRECISIONS)
    check_size(size)
    device = next(net.parameters()).device
    if precision == "fp8":
        check_fp8(device)
    size = size or (net.about.size if net.about is not None else input_size(net))
    if batch_size is None:
        batch_size = default_batch(device, size[1] * size[2])
    check_whole("batch_size", batch_size)
    prepared = copy.deepcopy(net)
    with suppress(UserError):  # what cannot be folded predicts with M encoders
        prepared = fold(net)
    prepared = prepared.eval().requires_grad_(False)
    if device.type == "cuda":
        prepared = prepared.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if precision == "fp8":
        quantise(prepared, size, batch_size)
    return Compiled(prepared, precision, batch_size)


def check_uncompiled(net: Ensemble) -> None:
    """Raise an error if the network is a compiled one."""
    if isinstance(net, Compiled):
        raise UserError("the network is compiled and only predicts; give the network that it was compiled from")


def quantise(net: Ensemble, size: Size, batch: int) -> None:
    """Replace the 3x3 convolutions between stems and heads by those in fp8, each with the fastest tile.

    On a device without the kernels, torch computes them from the dequantised operands.
    """
    device = next(net.parameters()).device
    ends = tuple(f"{name}." for name, layer in net.named_modules() if isinstance(layer, Copies))
    shapes = {
        name: shape
        for name, shape in layer_shapes(net, size, batch).items()
        if shape.supported_in_fp8 and not name.startswith(("encoders.", "heads.", *ends))
    }
    keys = {name: (shape, "forward", E4M3) for name, shape in shapes.items()}
    chosen = choices(list(dict.fromkeys(keys.values())), device) if available(device) else {}
    for name, key in keys.items():
        kernel = chosen[key].kernel if key in chosen else CUDNN
        if kernel == CUDNN and available(device):
            raise UserError(f"precision = fp8: no Triton kernel computes {key[0]} here; take bf16")
        layer = net.get_submodule(name)
        assert isinstance(layer, nn.Conv2d)
        replace(net, name, FrozenConv3x3FP8(layer, kernel))


class Compiled(Ensemble):
    """A compiled network, for predictions only: what `mixmo.compile` returns.

    Attributes:
        batch_size: Images per batch; smaller ones are padded, larger ones split.
        precision: In which it computes.
    """

    def __init__(self, net: Ensemble, precision: str, batch_size: int) -> None:
        super().__init__()
        self.net, self.precision, self.batch_size = net, precision, batch_size
        self.members, self.num_heads, self.stride, self.about = 1, net.num_heads, net.stride, net.about
        self._each = torch.compile(net.each, dynamic=False)
        super().train(False)

    def train(self, mode: bool = True) -> "Compiled":
        """Do nothing: the network stays in eval mode."""
        return self

    def read(
        self,
        images_MNCHW: Tensor,
        coefficients: Tensor | None = None,
        feature_mixing: FeatureMixing | None = None,
        visible: Tensor | None = None,
    ) -> Tensor:
        """Return the logits of every head (heads, N, K) for one image per sample."""
        if coefficients is not None or feature_mixing is not None or visible is not None:
            raise UserError("a compiled network only predicts; train the network that it was compiled from")
        self.check_count(images_MNCHW)
        return torch.cat([self._batch(part) for part in images_MNCHW[0].split(self.batch_size)], dim=1)

    @torch.no_grad()
    def _batch(self, images_NCHW: Tensor) -> Tensor:
        device, count = images_NCHW.device, len(images_NCHW)
        padded = images_NCHW.new_zeros(self.batch_size, *images_NCHW.shape[1:])
        padded[:count] = images_NCHW
        if device.type == "cuda":
            padded = padded.contiguous(memory_format=torch.channels_last)
        search = cudnn_benchmark() if device.type == "cuda" else nullcontext()  # of the other layers
        with autocast(device, self.precision), search:
            logits: Tensor = self._each(padded)[:, :count].float()
        return logits
