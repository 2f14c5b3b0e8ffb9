"""WRN-d-w, the wide residual network of the CIFAR experiments, as in the published results.

It differs from the usual one in two points: a block's stride is on its second convolution, and a strided convolution
pads only right and below (an even side). Both are needed for the published 5.957 G multiply-adds of WRN-28-10.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from mixmo.kernels.norm_relu import norm_relu
from mixmo.models.network import Parts, Stages, initialise
from mixmo.utils.errors import UserError


def wrn(depth: int, width: int) -> Parts:
    """Wide residual network WRN-depth-width for small images (CIFAR)."""
    if depth < 10 or (depth - 4) % 6:
        raise UserError(f"depth {depth} is not a WRN depth; take 6n + 4, such as 10, 16, 22, 28 or 40")

    def core(channels: int) -> nn.Module:
        stages: list[nn.Module] = []
        for planes, stride in ((16 * width, 1), (32 * width, 2), (64 * width, 2)):
            blocks = [Block(channels, planes, stride)]
            blocks += [Block(planes, planes, 1) for _ in range((depth - 4) // 6 - 1)]
            stages.append(nn.Sequential(*blocks))
            channels = planes
        return initialise(Stages(stages, after=nn.Sequential(nn.BatchNorm2d(channels), nn.ReLU())))

    return Parts(
        encoder=lambda channels: initialise(nn.Conv2d(channels, 16, 3, padding=1, bias=False)),
        encoded=16,
        stride=1,
        core=core,
        head=lambda classes: initialise(nn.Linear(64 * width, classes)),
    )


class Block(nn.Module):
    """BN-ReLU-conv, BN-ReLU-conv with the stride; a 1x1 shortcut on the raw input where shapes change."""

    def __init__(self, channels: int, planes: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv1 = nn.Conv2d(channels, planes, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, stride, padding=1 if stride == 1 else 0, bias=False)
        same = channels == planes and stride == 1
        self.shortcut = nn.Identity() if same else nn.Conv2d(channels, planes, 1, stride, bias=False)
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        out = norm_relu(self.bn2, self.conv1(norm_relu(self.bn1, x)))
        if self.stride != 1:
            height, width = out.shape[-2:]  # an odd side needs padding on both ends to meet the shortcut
            out = F.pad(out, (width % 2, 1, height % 2, 1))
        result: Tensor = self.conv2(out) + self.shortcut(x)
        return result
