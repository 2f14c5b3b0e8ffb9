"""Compare an exported file with PyTorch, and measure its accuracy."""

import math

import torch
from torch import Tensor

from mixmo.exporters.graph import Deployed
from mixmo.exporters.write import Session
from mixmo.surgery.probe import Size
from mixmo.utils.errors import UserError, first_line
from mixmo.utils.progress import Work


def run(graph: Deployed, images_NCHW: Tensor, size: Size) -> dict[str, Tensor]:
    """Return the outputs for one batch; a UserError if the network cannot read this size."""
    try:
        with torch.no_grad():
            outputs: dict[str, Tensor] = graph(images_NCHW)
    except (RuntimeError, AssertionError, ValueError) as error:
        raise UserError(f"the network cannot read images of {size} ({first_line(error)}); give their size=") from error
    if not all(values.isfinite().all() for values in outputs.values()):
        raise UserError("the network outputs NaN or infinite values; check whether its training diverged")
    return outputs


def compare(graph: Deployed, session: Session, images_NCHW: Tensor) -> float:
    """Return the largest difference of any output, for one image and for several."""
    worst = 0.0
    for batch in (images_NCHW, images_NCHW[:1]):
        with torch.no_grad():
            expected = graph(batch)
        outputs = session(batch)
        for name, values in expected.items():
            worst = max(worst, (outputs[name].float() - values).abs().max().nan_to_num(math.inf).item())
    return worst


@torch.no_grad()
def accuracy(predict: Session, images_NCHW: Tensor, labels_N: Tensor, work: Work) -> float:
    """Return the accuracy of the ensemble; `work` shows the progress."""
    predicted = []
    for batch in images_NCHW.split(100):
        predicted.append(predict(batch)["probs"].argmax(1))
        work.advance(len(batch))
    return (torch.cat(predicted) == labels_N).double().mean().item()
