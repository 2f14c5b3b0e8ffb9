"""PreActResNet-18-w of the Tiny ImageNet experiments: an encoder of stride 2 and 64 channels."""

from collections.abc import Callable

from torch import Tensor, nn

from mixmo.kernels.norm_relu import norm_relu
from mixmo.models.network import Parts, Stages, initialise
from mixmo.utils.errors import UserError


def preactresnet(depth: int, width: int) -> Parts:
    """Pre-activation residual network PreActResNet-18-width for 64x64 images (Tiny ImageNet)."""
    if depth != 18:
        raise UserError(f"depth {depth} is not a PreActResNet depth here; take 18")
    return Parts(
        encoder=lambda channels: initialise(nn.Conv2d(channels, 64, 3, stride=2, padding=1, bias=False)),
        encoded=64,
        stride=2,
        core=lambda channels: initialise(Stages(four_stages(PreActBlock, channels, width))),
        head=lambda classes: initialise(nn.Linear(512 * width, classes), linear_std=0.01),
    )


def four_stages(block: Callable[[int, int, int], nn.Module], channels: int, width: int) -> list[nn.Module]:
    """The stages of a ResNet-18: two blocks each, twice the channels and half the resolution from stage to stage."""
    stages: list[nn.Module] = []
    for planes, stride in ((64 * width, 1), (128 * width, 2), (256 * width, 2), (512 * width, 2)):
        stages.append(nn.Sequential(block(channels, planes, stride), block(planes, planes, 1)))
        channels = planes
    return stages


class PreActBlock(nn.Module):
    """BN-ReLU-conv with the stride, BN-ReLU-conv; the shortcut starts after the first BN-ReLU."""

    def __init__(self, channels: int, planes: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv1 = nn.Conv2d(channels, planes, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, padding=1, bias=False)
        same = channels == planes and stride == 1
        self.shortcut = None if same else nn.Conv2d(channels, planes, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        active = norm_relu(self.bn1, x)
        out = self.conv2(norm_relu(self.bn2, self.conv1(active)))
        result: Tensor = out + (x if self.shortcut is None else self.shortcut(active))
        return result
