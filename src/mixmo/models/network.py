"""M encoders, the mixing block, one core network, M heads (paper, section 3.1 and figure 2)."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from mixmo.mixing.types import Hidden, Mix
from mixmo.models.metadata import About
from mixmo.utils.errors import UserError

M = TypeVar("M", bound=nn.Module)


class Parts(NamedTuple):
    """A family of networks, taken apart where MixMo needs it. `create` puts M of the outer parts around one core."""

    encoder: Callable[[int], nn.Module]  # image channels -> a fresh first convolution
    encoded: int  # channels it gives
    stride: int  # of the encoder: the features' resolution is the image's divided by it
    core: Callable[[int], nn.Module]  # channels of the mixed features -> a fresh core, (N, C, h, w) to (N, F): any
    # module, such as an nn.Sequential; feature mixing (Hidden) needs one of `Stages`
    head: Callable[[int], nn.Module]  # classes -> a fresh dense layer, (N, F) to (N, K)


class Ensemble(nn.Module):
    """A network that reads M images at once and answers as M: what `create` and `wrap` give."""

    members: int  # images it reads at once: 1 once folded
    answers: int  # heads that answer
    stride: int  # image pixels a position of the mixed features, along each side
    about: About | None = None  # how its images are prepared, its classes and scores, where that is known

    def forward(self, x: Mix | Tensor) -> Tensor:
        """Of a Mix, the answer of each head (heads, N, K); of plain images (N, C, H, W), the ensemble's (N, K).

        The ensemble averages logits, as the published scores do.
        """
        if isinstance(x, Mix):
            if not x.images.is_floating_point():
                raise UserError(f"the network was given a Mix of {x.images.dtype} images; normalise them to floats")
            return self.read(x.images, x.coefficients, x.hidden)
        if not isinstance(x, Tensor) or x.dim() != 4 or not x.is_floating_point():
            what = f"{x.dtype} {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
            raise UserError(f"the network was given a {what}; give a Mix, or float images (N, C, H, W)")
        return self.each(x).mean(0)

    def each(self, images_NCHW: Tensor) -> Tensor:
        """Every head's logits (heads, N, K) for one image given M times."""
        return self.read(images_NCHW.expand(self.members, *images_NCHW.shape))

    def read(self, images_MNCHW: Tensor, coefficients: Tensor | None = None, hidden: Hidden | None = None) -> Tensor:
        """Every head's logits (heads, N, K) for M images a sample, mixed by `coefficients` or plainly summed."""
        raise NotImplementedError

    def check_count(self, images_MNCHW: Tensor) -> None:
        """Refuses more images a sample, or fewer, than there are members."""
        if len(images_MNCHW) != self.members:
            hint = f"make the Mixer with members={self.members}"
            if self.members == 1 and self.answers > 1:
                hint = "it is folded: train the network that it was folded from"
            raise UserError(
                f"{len(images_MNCHW)} images a sample for a network that reads {self.members} at once; {hint}"
            )


class Network(Ensemble):
    """One network that answers as M.

    Every baseline is this class too: a vanilla network has one encoder and one head; the ablation of the paper's
    table 3 has fewer encoders or heads than members, and an encoder or head that lacks is shared.
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
        """`name` is that by which `create` made it, and can again."""
        super().__init__()
        self.name = name
        self.encoders = nn.ModuleList(encoders)
        self.core = core
        self.heads = nn.ModuleList(heads)
        self.members = members
        self.answers = len(self.heads)
        self.stride = stride
        self.concat = concat

    def read(self, images_MNCHW: Tensor, coefficients: Tensor | None = None, hidden: Hidden | None = None) -> Tensor:
        """Every head's logits (heads, N, K) for M images a sample.

        Mixed by `coefficients` in training; the plain sum without them, as at test time. Aggregated Learning
        concatenates the channels instead and needs no coefficients.
        """
        self.check_count(images_MNCHW)
        encoded = [self.encoders[m % len(self.encoders)](x) for m, x in enumerate(images_MNCHW.unbind(0))]
        features = torch.cat(encoded, dim=1) if self.concat else blend(encoded, coefficients)
        pooled = self.core(features) if hidden is None else self.core(features, hidden)
        return torch.stack([head(pooled) for head in self.heads])


def channels(net: Network) -> int | None:
    """Of its images: what the first convolution reads; None where a network of one's own has none."""
    found = (layer.in_channels for layer in net.encoders[0].modules() if isinstance(layer, nn.Conv2d))
    return next(found, None)


def blend(encoded: Sequence[Tensor], coefficients: Tensor | None) -> Tensor:
    """Mixing block (equation 2) of M encodings (N, C, h, w): M sum_i mask_i * c_i(x_i), or the plain sum."""
    if coefficients is None:
        return torch.stack(list(encoded)).sum(0) if len(encoded) > 1 else encoded[0]
    # Ratios keep float32 under autocast: half precision would move the realised kappa.
    terms = zip(fit(coefficients, encoded[0]).unbind(0), encoded, strict=True)
    mixed: Tensor = len(encoded) * sum(c * f for c, f in terms)  # type: ignore[assignment]
    return mixed.to(encoded[0].dtype)


def fit(coefficients: Tensor, features: Tensor) -> Tensor:
    """The mixing map at the features' resolution: masks drawn for another one are resized without losing binariness."""
    size = features.shape[-2:]
    if coefficients.shape[-2:] in (size, (1, 1)):
        return coefficients
    resized = nn.functional.interpolate(coefficients.flatten(0, 1), size=size, mode="nearest")
    return resized.view(*coefficients.shape[:3], *size)


class Stages(nn.Module):
    """A core: stages of residual blocks, a last normalisation, global average pooling."""

    def __init__(self, stages: Sequence[nn.Module], *, before: nn.Module | None = None, after: nn.Module | None = None):
        super().__init__()
        self.before = before or nn.Identity()
        self.stages = nn.ModuleList(stages)
        self.after = after or nn.Identity()

    def forward(self, features: Tensor, hidden: Hidden | None = None) -> Tensor:
        features = self.before(features)
        for k, stage in enumerate(self.stages):
            if hidden is not None and k < len(hidden.shares):
                features = torch.lerp(features[hidden.partner], features, hidden.shares[k].to(features.dtype))
            features = stage(features)
        pooled: Tensor = self.after(features).mean((-2, -1))
        return pooled


def initialise(module: M, *, linear_std: float | None = None) -> M:
    """He initialisation by fan-in, normal truncated at two standard deviations and rescaled to keep its variance.

    Dense layers alike, or N(0, linear_std); biases zero. This is what the published networks started from.
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
