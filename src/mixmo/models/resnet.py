"""ResNet-18-w for ImageNet-sized images (the paper's preliminary ImageNet study).

The paper gives no code for it. We keep the standard ResNet-18 (7x7 stride-2 convolution, max-pooling, four stages), mix
right after the first convolution, before its normalisation, and let w widen the stages, not the 64-channel encoder,
as in the published PreActResNet-18-w.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from mixmo.kernels.norm_relu import norm_relu
from mixmo.models.network import Parts, Stages, initialise
from mixmo.models.preact_resnet import four_stages
from mixmo.utils.errors import UserError


def resnet(depth: int, width: int) -> Parts:
    """Residual network ResNet-18-width for large images (ImageNet)."""
    if depth != 18:
        raise UserError(f"depth {depth} is not a ResNet depth here; take 18")

    def core(channels: int) -> nn.Module:
        before = nn.Sequential(nn.BatchNorm2d(channels), nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1))
        return initialise(Stages(four_stages(BasicBlock, channels, width), before=before))

    return Parts(
        encoder=lambda channels: initialise(nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False)),
        encoded=64,
        stride=2,
        core=core,
        head=lambda classes: initialise(nn.Linear(512 * width, classes), linear_std=0.01),
    )


class BasicBlock(nn.Module):
    """conv-BN-ReLU, conv-BN, add, ReLU."""

    def __init__(self, channels: int, planes: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, planes, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.shortcut: nn.Module = nn.Identity()
        if channels != planes or stride != 1:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, planes, 1, stride, bias=False), nn.BatchNorm2d(planes))

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(norm_relu(self.bn1, self.conv1(x))))
        return F.relu(out + self.shortcut(x))
