"""M encoders, the mixing block, one core network, M heads (paper, section 3.1 and figure 2)."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from mixmo.mixing.block import mixing_block, unmix
from mixmo.mixing.types import FeatureMixing, Mix
from mixmo.models.metadata import About
from mixmo.utils.errors import UserError

M = TypeVar("M", bound=nn.Module)


class Parts(NamedTuple):
    """A family of networks, taken apart where MixMo needs it. `create` puts M encoders and heads around one core."""

    encoder: Callable[[int], nn.Module]  # image channels -> a new first convolution
    encoded: int  # channels of its output
    stride: int  # image pixels per position of its output
    core: Callable[[int], nn.Module]  # mixed channels -> a new core, (N, C, h, w) to (N, F): any module, such as an
    # nn.Sequential; feature mixing needs `Stages`
    head: Callable[[int], nn.Module]  # classes -> a new dense layer, (N, F) to (N, K)


class Ensemble(nn.Module):
    """A network that reads M images per forward pass and has one head per member: what `create` and `wrap` return.

    Attributes:
        members: Images read per forward pass, M; 1 once folded.
        num_heads: Number of heads.
        stride: Image pixels per position of the mixed features, along each side; the `stride` of its `Mixer`.
        about: How its images are prepared, its classes and its scores, where known.
    """

    members: int
    num_heads: int
    stride: int
    about: About | None = None

    def forward(self, x: Mix | Tensor) -> Tensor:
        """Return the logits of each head for a mixed batch, or of the ensemble for plain images.

        The ensemble is the mean of the members' logits: d = 1/M sum_i d_i(x, ..., x).

        Args:
            x: A `Mix`, or normalised images (N, C, H, W).

        Returns:
            Logits (heads, N, K) of a Mix; logits (N, K) of plain images.

        Raises:
            UserError: If x is neither, or holds integers.
        """
        if isinstance(x, Mix):
            _check_images(x.images, 5)
            return self.read(x.images, x.coefficients, x.feature_mixing, x.visible)
        _check_images(x, 4)
        return self.each(x).mean(0)

    def each(self, images_NCHW: Tensor) -> Tensor:
        """Return the logits of every head (heads, N, K), each image repeated M times: the members' predictions."""
        return self.read(images_NCHW.expand(self.members, *images_NCHW.shape))

    def read(
        self,
        images_MNCHW: Tensor,
        coefficients: Tensor | None = None,
        feature_mixing: FeatureMixing | None = None,
        visible: Tensor | None = None,
    ) -> Tensor:
        """Return the logits of every head for M images per sample.

        Args:
            images_MNCHW: One image per member and sample.
            coefficients: How their encodings are mixed, (M, N, 1, h, w) as in a `Mix`; the plain sum without.
            feature_mixing: Feature mixing of single networks (Manifold Mixup, PatchUp).
            visible: For unmixing: weight of each position in each head's pooling, (M, N, 1, h, w) as in a `Mix`.

        Returns:
            Logits (heads, N, K).
        """
        raise NotImplementedError

    def check_count(self, images_MNCHW: Tensor) -> None:
        """Raise a UserError unless there is one image per member."""
        if len(images_MNCHW) != self.members:
            given = f"{len(images_MNCHW)} images per sample for a network that reads {self.members}"
            raise UserError(f"{given}; make the Mixer with members={self.members}, or train before it is folded")


def _check_images(images: Tensor, dimensions: int) -> None:
    if not isinstance(images, Tensor) or images.dim() != dimensions or not images.is_floating_point():
        given = f"{images.dtype} {tuple(images.shape)}" if isinstance(images, Tensor) else type(images).__name__
        raise UserError(f"the network's input is a {given}; give a Mix, or normalised float images (N, C, H, W)")


class Network(Ensemble):
    """M encoders, one core and M heads (paper, figure 2): heads(core(mixing_block(encoders(x)))).

    Every baseline is this class too: a vanilla network has one encoder and one head; the ablation of table 3 has fewer
    encoders or heads than members, which then share them.

    Args:
        encoders: First convolutions c_i, one per member or one for all.
        core: The core network C, from mixed features (N, C, h, w) to (N, F).
        heads: Dense layers d_i, one per member or one for all.
        members: Images read per forward pass, M.
        stride: Image pixels per position of the encoded features.
        concat: Concatenate the encodings (Aggregated Learning) instead of mixing them.
        name: The name `create` made it by.
    """

    def __init__(
        self,
        encoders: Sequence[nn.Module],
        core: nn.Module,
        heads: Sequence[nn.Module],
        *,
        members: int,
        stride: int,
        concat: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__()
        self.name = name
        self.encoders = nn.ModuleList(encoders)
        self.core = core
        self.heads = nn.ModuleList(heads)
        self.members = members
        self.num_heads = len(self.heads)
        self.stride = stride
        self.concat = concat

    def read(
        self,
        images_MNCHW: Tensor,
        coefficients: Tensor | None = None,
        feature_mixing: FeatureMixing | None = None,
        visible: Tensor | None = None,
    ) -> Tensor:
        self.check_count(images_MNCHW)
        encoded = [self.encoders[m % len(self.encoders)](x) for m, x in enumerate(images_MNCHW.unbind(0))]
        features = torch.cat(encoded, dim=1) if self.concat else mixing_block(encoded, coefficients)
        if visible is not None:
            pooled = unmix(self.core.maps(features), visible)  # type: ignore[operator]
            return torch.stack([head(x) for head, x in zip(self.heads, pooled.unbind(0), strict=True)])
        pooled = self.core(features) if feature_mixing is None else self.core(features, feature_mixing)
        return torch.stack([head(pooled) for head in self.heads])


def channels(net: Network) -> int | None:
    """Number of image channels, from the first convolution; None where a user-defined encoder has none."""
    found = (layer.in_channels for layer in net.encoders[0].modules() if isinstance(layer, nn.Conv2d))
    return next(found, None)


class Stages(nn.Module):
    """A core: stages of residual blocks, a last normalisation, global average pooling."""

    def __init__(self, stages: Sequence[nn.Module], *, before: nn.Module | None = None, after: nn.Module | None = None):
        super().__init__()
        self.before = before or nn.Identity()
        self.stages = nn.ModuleList(stages)
        self.after = after or nn.Identity()

    def forward(self, features: Tensor, mixing: FeatureMixing | None = None) -> Tensor:
        return self.maps(features, mixing).mean((-2, -1))

    def maps(self, features: Tensor, mixing: FeatureMixing | None = None) -> Tensor:
        """Return the last feature maps (N, F, h, w), before pooling."""
        features = self.before(features)
        for k, stage in enumerate(self.stages):
            if mixing is not None and k < len(mixing.shares):
                features = torch.lerp(features[mixing.partner], features, mixing.shares[k].to(features.dtype))
            features = stage(features)
        last: Tensor = self.after(features)
        return last


def initialise(module: M, *, linear_std: float | None = None) -> M:
    """He initialisation by fan-in, normal truncated at two standard deviations and rescaled to keep its variance.

    Dense layers alike, or N(0, linear_std); biases zero: the initialisation of the published networks.
    """
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            if isinstance(layer, nn.Linear) and linear_std is not None:
                nn.init.normal_(layer.weight, std=linear_std)
            else:
                std = (2 / layer.weight[0].numel()) ** 0.5 / 0.87962566103423978  # the std of a unit normal cut at +-2
                nn.init.trunc_normal_(layer.weight, std=std, a=-2 * std, b=2 * std)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return module
