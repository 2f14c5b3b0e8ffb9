"""Whether a file says what PyTorch says, and how often it is right."""

import math

import torch
from torch import Tensor

from mixmo.exporters.graph import Deployed
from mixmo.exporters.write import Session
from mixmo.surgery.probe import Size
from mixmo.utils import memory
from mixmo.utils.errors import UserError, first_line
from mixmo.utils.progress import Work


def examples(size: Size, pixels: bool) -> Tensor:
    """Three random images: pixels in 0..1, or about what normalised images span."""
    memory.check(12 * math.prod(size), torch.device("cpu"), f"three images of {size}", "give a smaller size")
    uniform = torch.rand(3, *size, generator=torch.Generator().manual_seed(0))
    return uniform if pixels else 2 * uniform - 1


def run(graph: Deployed, images_NCHW: Tensor, size: Size) -> dict[str, Tensor]:
    """One batch; a size that the network cannot read is the user's."""
    try:
        with torch.no_grad():
            outputs: dict[str, Tensor] = graph(images_NCHW)
    except (RuntimeError, AssertionError, ValueError) as error:
        raise UserError(
            f"the network cannot read images of size {size} ({first_line(error)}); give the right `size`"
        ) from error
    if not all(values.isfinite().all() for values in outputs.values()):
        raise UserError("the network answers NaN or infinite values; see whether its training diverged")
    return outputs


def compare(graph: Deployed, session: Session, images_NCHW: Tensor) -> float:
    """The largest difference of any output, for one image and for several."""
    worst = 0.0
    for batch in (images_NCHW, images_NCHW[:1]):
        with torch.no_grad():
            expected = graph(batch)
        got = session(batch)
        for name, values in expected.items():
            worst = max(worst, (got[name].float() - values).abs().max().nan_to_num(math.inf).item())
    return worst


@torch.no_grad()
def accuracy(predict: Session, images_NCHW: Tensor, labels_N: Tensor, work: Work) -> float:
    """Top1 of the ensemble, counted as a part of this work."""
    answers = []
    for batch in images_NCHW.split(100):
        answers.append(predict(batch)["probs"].argmax(1))
        work.advance(len(batch))
    return (torch.cat(answers) == labels_N).double().mean().item()
