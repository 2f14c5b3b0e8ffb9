"""Saliency: the gradient of the loss by each pixel, its root mean square over the channels."""

from contextlib import nullcontext

import torch
from torch import Tensor

from mixmo.mixing.loss import loss
from mixmo.mixing.types import Mix
from mixmo.models import Ensemble
from mixmo.utils.eval_mode import evaluating


def saliency(net: Ensemble, mix: Mix, clean: float) -> tuple[Tensor, Tensor | None]:
    """Saliency (N, H, W) of a single network's images, and the loss term of the unmixed images, if any.

    As published there are two ways. With clean = 0 the network is evaluated in eval mode, without a trace. With
    clean > 0 in training mode: the batch updates the running statistics, and clean * L(x) is part of the loss.
    """
    images = mix.images.detach().requires_grad_()
    clean_mix = mix._replace(images=images)
    with nullcontext() if clean > 0 else evaluating(net):
        value = loss(net(clean_mix), clean_mix)
        (gradient_1NCHW,) = torch.autograd.grad(value, images, retain_graph=clean > 0)
    salient_NHW = gradient_1NCHW[0].float().square().mean(1).sqrt()
    return salient_NHW, clean * value if clean > 0 else None


def share(saliency_NHW: Tensor, side: int) -> Tensor:
    """(N, side, side): each block's share of the image's saliency."""
    block = saliency_NHW.shape[-1] // side
    pooled = torch.nn.functional.avg_pool2d(saliency_NHW, block)
    return pooled / pooled.sum((1, 2), keepdim=True).clamp_min(torch.finfo(pooled.dtype).tiny)
