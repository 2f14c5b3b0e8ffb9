"""At test time: the same image M times, the heads averaged, in one forward pass."""

import torch
from torch import Tensor

from mixmo.augment.basic import centre, normalise
from mixmo.models import Network
from mixmo.types import Dataset, Split


@torch.no_grad()
def predict_logits(
    net: Network,
    dataset: Dataset,
    split: Split,
    precision: str = "fp32",
    batch_size: int | None = None,
    size: int | None = None,
) -> Tensor:
    """Every head's logits (heads, N, K), float32, for a whole split; of the middle `size` x `size` pixels if given."""
    training = net.training
    net.eval()
    device = split.images.device
    batch_size = batch_size or (100 if device.type == "cpu" else 500)  # what fits a CPU's caches is 1.7 times as fast
    with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
        pixels = (centre(images, size) for images in split.images.split(batch_size))
        batches = (normalise(images, dataset.mean, dataset.std) for images in pixels)
        parts = [net.each(images).float() for images in batches]
    net.train(training)
    return torch.cat(parts, dim=1)
