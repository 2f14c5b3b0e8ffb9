"""Saliency: how much the loss would change with each pixel, |dL/dx| over the channels."""

import torch
from torch import Tensor

from mixmo.mixing.loss import loss
from mixmo.mixing.types import Mix
from mixmo.models import Network
from mixmo.utils.eval_mode import evaluating


def saliency(net: Network, mix: Mix, clean: float) -> tuple[Tensor, Tensor | None]:
    """Saliency (N, H, W) of a single network's images, and what these images, unmixed, add to the loss, if anything.

    As published there are two ways. With clean = 0 the network is asked as at test time, by its running statistics,
    and nothing of this stays. With clean > 0 it is asked as in training: the batch moves the running statistics like
    any other, and clean * L(x) is part of the loss.
    """
    images = mix.images.detach().requires_grad_()
    asked = mix._replace(images=images)
    if clean > 0:
        value = loss(net(asked), asked)
        (gradient,) = torch.autograd.grad(value, images, retain_graph=True)
        return strength(gradient), clean * value
    with evaluating(net):
        (gradient,) = torch.autograd.grad(loss(net(asked), asked), images)
    return strength(gradient), None


def strength(gradient_1NCHW: Tensor) -> Tensor:
    """(N, H, W): the root of the mean square over the channels."""
    return gradient_1NCHW[0].float().square().mean(1).sqrt()


def share(saliency_NHW: Tensor, side: int) -> Tensor:
    """(N, side, side): each block's share of the image's saliency."""
    block = saliency_NHW.shape[-1] // side
    pooled = torch.nn.functional.avg_pool2d(saliency_NHW, block)
    return pooled / pooled.sum((1, 2), keepdim=True).clamp_min(torch.finfo(pooled.dtype).tiny)
