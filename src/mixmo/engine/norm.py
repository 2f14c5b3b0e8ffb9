"""Batch normalisation over all processes, or over ghost batches. Parameters keep their names."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from mixmo.engine.distributed import World, all_mean
from mixmo.kernels.norm_relu import update_running
from mixmo.utils.errors import UserError


def synchronise(net: nn.Module, device: torch.device) -> nn.Module:
    """Normalise with the statistics of the global batch, over all processes."""
    if device.type == "cuda":
        return nn.SyncBatchNorm.convert_sync_batchnorm(net)  # type: ignore[no-any-return]
    for layer in plain_norms(net):
        layer.__class__ = GlobalBatchNorm  # torch's own SyncBatchNorm has no CPU path
    return net


def set_ghost(net: nn.Module, ghost: int) -> None:
    """Normalise with the statistics of ghost batches of `ghost` images."""
    for layer in plain_norms(net):
        layer.__class__ = GhostBatchNorm
        vars(layer)["ghost"] = ghost


def plain_norms(net: nn.Module) -> Sequence[nn.Module]:
    """Return all batch normalisations; a user-defined network may have some that cannot be replaced."""
    norms = [layer for layer in net.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
    for layer in norms:
        if type(layer) is not nn.BatchNorm2d or not (layer.affine and layer.track_running_stats and layer.momentum):
            raise UserError(f"ghost batches and several CPU processes need nn.BatchNorm2d(channels), not {layer}")
    return norms


def average_statistics(net: nn.Module, averaged: nn.Module | None, world: World) -> None:
    """Average the running statistics of ghost batches over the processes, also those of the averaged network."""
    for buffer in (buffer for one in (net, averaged) if one for buffer in one.buffers()):
        if buffer.is_floating_point():
            buffer.copy_(world.mean(buffer))


class GlobalBatchNorm(nn.BatchNorm2d):
    """Batch normalisation with the statistics of all processes' batches, which are of one size; on any device."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        dims = (0, 2, 3)
        mean = all_mean(x.mean(dims))
        centred = x - mean[:, None, None]
        variance = all_mean(centred.square().mean(dims))
        update_running(self, mean, variance, x.numel() // x.shape[1] * dist.get_world_size())
        scale = self.weight * (variance + self.eps).rsqrt()
        return centred * scale[:, None, None] + self.bias[:, None, None]


class GhostBatchNorm(nn.BatchNorm2d):
    """Batch normalisation that sees a batch as several smaller ones (Hoffer et al., "Train longer, generalize better").

    Running statistics follow the mean over ghost batches: linear, so those of several processes can be averaged.
    """

    ghost: int

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        x_GNCHW = x.unflatten(0, (-1, self.ghost))
        x_GNCHW = x_GNCHW.to(torch.promote_types(x.dtype, torch.float32))  # under autocast, as torch's own
        variance, mean = torch.var_mean(x_GNCHW, (1, 3, 4), correction=0, keepdim=True)
        update_running(self, mean.mean(0).flatten(), variance.mean(0).flatten(), x_GNCHW[0].numel() // x.shape[1])
        scale = self.weight[:, None, None] * (variance + self.eps).rsqrt()
        y_GNCHW: Tensor = (x_GNCHW - mean) * scale + self.bias[:, None, None]
        return y_GNCHW.flatten(0, 1).to(x.dtype)
