"""Make a Mix from sample indices, on the device: pairing, crop, flip, AugMix, normalisation, mixing.

`draw` holds all the randomness; `mix` is a pure function of it that can be compiled and captured with the network.
"""

from typing import NamedTuple

import torch
from torch import Generator, Tensor

from mixmo.augment.augmix import AUGMIX_UNIFORMS, augmix
from mixmo.augment.basic import crop_flip, normalise, resized_crop
from mixmo.augment.pixel import AUGMENTATIONS
from mixmo.baselines.feature_mixing import FEATURE_MIXING, FeatureMixingDraws, draw_feature_mixing, stage_shapes
from mixmo.baselines.gradaug import Subnet, draw_subnets
from mixmo.baselines.saliency import SALIENCY, SaliencyDraws
from mixmo.data.types import Dataset, Split
from mixmo.engine.source import Partners, draw_partners
from mixmo.mixing.mixer import MixDraws
from mixmo.mixing.pairing import draw_order, pair
from mixmo.mixing.types import FeatureMixing, Mix
from mixmo.models import Network
from mixmo.recipes.schema import Recipe
from mixmo.utils.rng import draw_gamma


class PixelDraws(NamedTuple):
    """The randomness of the pixel augmentation, per member and sample."""

    partner: Tensor | None  # (M, N) indices of samples of the whole data set, where it mixes two
    crop: Tensor  # (M, N, 3 or 5) uniform: the partner's crop and flip
    gamma: Tensor  # (2, M, N) standard gamma variables: lambda ~ Beta
    kind: Tensor  # (M, N, P) uniform: what the augmentation itself needs


class Draws(NamedTuple):
    """All the randomness of one training step."""

    unique: Tensor  # (n,) indices of the samples of this step, each to be repeated b times
    order: Tensor  # (M, N) permutations: the order of the batch for each member
    same: Tensor  # (N,) uniform: input repetition
    crop: Tensor  # (M, N, 3) uniform: place of the crop, flip; or (M, N, 5): its size and form before these
    mix: MixDraws
    augmix: Tensor | None  # (M, n, P) uniform: a member's copies of a sample share their operations
    pixel: PixelDraws | None
    feature_mixing: FeatureMixingDraws | None
    subnets: tuple[Subnet, ...]
    pool: Split | None  # what the indices refer to, if not the resident data set
    saliency: SaliencyDraws | None

    def of(self, part: slice) -> "Draws":
        """Return the draws of a part of the samples of the batch, once they are paired."""
        mix, pixel = self.mix, self.pixel
        if pixel is not None:
            partner = None if pixel.partner is None else pixel.partner[:, part]
            pixel = PixelDraws(partner, pixel.crop[:, part], pixel.gamma[:, :, part], pixel.kind[:, part])
        mix = MixDraws(mix.gamma[:, part], mix.mask[part], mix.sample[part], mix.batch[:, part])
        return self._replace(crop=self.crop[:, part], mix=mix, pixel=pixel)


class Batches:
    def __init__(
        self, recipe: Recipe, dataset: Dataset, split: Split, part: slice = slice(None), net: Network | None = None
    ) -> None:
        """Draw for all samples of a batch, of which `part` is made here; feature mixing needs the shapes in `net`."""
        self.part = part
        self.recipe = recipe
        self.dataset = dataset
        self.split = split
        self.mixer = recipe.mixer()
        self.augmentation = None if recipe.pixel == "none" else AUGMENTATIONS[recipe.pixel]
        self.feature_mixing = None if recipe.feature_mixing == "none" else FEATURE_MIXING[recipe.feature_mixing]
        self.saliency = None if recipe.saliency == "none" else SALIENCY[recipe.saliency]
        seen = channels, self.height, self.width = recipe.seen(dataset.size)
        self.shapes: list[torch.Size] = []  # of the features that enter each stage of the core
        if self.feature_mixing is not None:
            if net is None:
                with torch.device("meta"):
                    net = recipe.network(len(dataset.classes), channels)
            self.shapes = stage_shapes(net, seen)
        self.crop_uniforms = 5 if recipe.crop_scale < 1 else 3

    def draw(
        self, unique: Tensor, generator: Generator, partners: Partners | None = None, pool: Split | None = None
    ) -> Draws:
        """Draw the randomness of a step over these samples of the split or, if it is streamed, of the step's `pool`."""
        recipe, device = self.recipe, unique.device
        members, n = recipe.members, recipe.batch_size

        def uniform(*shape: int) -> Tensor:
            return torch.rand(shape, device=device, generator=generator)

        mix = self.mixer.draw(n, self.height, self.width, device, generator, recipe.ghosts)
        order = draw_order(members, n, device=device, generator=generator, ghosts=recipe.ghosts)
        same, crop = uniform(n), uniform(members, n, self.crop_uniforms)
        operations = uniform(members, len(unique), AUGMIX_UNIFORMS) if recipe.augmix else None
        pixel = None
        if self.augmentation is not None:
            gamma = draw_gamma(recipe.pixel_alpha, 2, members, n, device=device, generator=generator)
            kind = uniform(members, n, self.augmentation.uniforms)
            if self.augmentation.needs_partner:
                partners = partners or draw_partners((members, n), len((pool or self.split).labels), generator)
                kind[..., 0] = partners.whether
            number = None if partners is None else partners.number
            pixel = PixelDraws(number, uniform(members, n, self.crop_uniforms), gamma, kind)
        features = None
        if self.feature_mixing is not None:
            features = draw_feature_mixing(self.feature_mixing, recipe.alpha, self.shapes, n, generator)
        subnets = draw_subnets(recipe.subnets, generator) if recipe.subnets else ()
        saliency = None
        if self.saliency is not None:
            saliency = self.saliency.draw(n, self.saliency.fitting(self.width), recipe.alpha, generator)
        return Draws(unique, order, same, crop, mix, operations, pixel, features, subnets, pool, saliency)

    def mix(self, draws: Draws, chance: Tensor) -> Mix:
        """Return the batch of a step; `chance` is the probability of a mask at this point of training."""
        recipe, pool = self.recipe, draws.pool or self.split
        slots_n = torch.arange(len(draws.unique), device=chance.device)
        slot_MN = pair(slots_n, recipe.repetition, draws.order, recipe.rho, draws.same, recipe.ghosts)[:, self.part]
        if recipe.rho > 0:  # an image shown to all members is cropped and flipped once, as it will be at test time
            same_N1 = (draws.same < recipe.rho)[:, None]
            draws = draws._replace(crop=torch.where(same_N1, draws.crop[:1], draws.crop))
        draws = draws.of(self.part)
        index_MN = draws.unique[slot_MN]
        operations = None
        if draws.augmix is not None:
            operations = draws.augmix.gather(1, slot_MN[..., None].expand(-1, -1, draws.augmix.shape[2]))
        images, targets = self.images(pool, index_MN, draws.crop, operations), pool.labels[index_MN]
        coefficients = self.mixer.coefficients(draws.mix, chance, self.height, self.width)
        if self.soft:
            targets = torch.nn.functional.one_hot(targets, len(self.dataset.classes)).float()
        if draws.pixel is not None:
            images, targets = self.augment(pool, images, targets, coefficients, draws.pixel)
        if draws.feature_mixing is None:
            return self.mixer.assemble(images, targets, coefficients, draws.mix)
        assert self.feature_mixing is not None
        shares, own = self.feature_mixing.shares(draws.feature_mixing)
        mixing = FeatureMixing(draws.feature_mixing.order, shares)
        targets = torch.lerp(targets[:, mixing.partner], targets, own)
        mix = self.mixer.assemble(images, targets, coefficients, draws.mix)
        return mix._replace(weights=mix.weights * self.feature_mixing.weight, feature_mixing=mixing)

    @property
    def soft(self) -> bool:
        """Whether targets are distributions over the classes rather than class indices."""
        mixes_labels = self.augmentation is not None and self.augmentation.needs_partner
        mixes_labels = mixes_labels or self.feature_mixing is not None or self.saliency is not None
        return mixes_labels or self.mixer.association == "interpolated"

    def images(self, pool: Split, index_MN: Tensor, crop_MNP: Tensor, operations_MNP: Tensor | None) -> Tensor:
        """Crop, flip, AugMix and normalise samples to (M, N, C, H, W)."""
        recipe, index, u = self.recipe, index_MN.flatten(), crop_MNP.flatten(0, 1)
        if recipe.crop_scale < 1:
            pixels = resized_crop(pool.resident, index, u, self.height, recipe.crop_scale, recipe.flip)
        else:
            pixels = crop_flip(pool.resident, index, u, recipe.crop, recipe.flip, recipe.size)
        if operations_MNP is not None:
            pixels = augmix(pixels, operations_MNP.flatten(0, 1))
        images = normalise(pixels, self.dataset.mean, self.dataset.std)
        return images.unflatten(0, index_MN.shape)  # type: ignore[no-any-return]

    def augment(
        self, pool: Split, images: Tensor, targets: Tensor, coefficients: Tensor, draws: PixelDraws
    ) -> tuple[Tensor, Tensor]:
        """Augment each member's input under its own mask; targets (M, N) stay, (M, N, K) are mixed."""
        assert self.augmentation is not None
        shape = images.shape[:2]
        partner = images if draws.partner is None else self.images(pool, draws.partner, draws.crop, None)
        mixed = self.augmentation(
            images.flatten(0, 1),
            partner.flatten(0, 1),
            (draws.gamma[0] / draws.gamma.sum(0)).flatten(),
            draws.kind.flatten(0, 1),
            coefficients[:, :, 0].flatten(0, 1),
            prob=self.recipe.pixel_p,
            keep_main=self.recipe.members > 1,
        )
        if draws.partner is not None:
            other = torch.nn.functional.one_hot(pool.labels[draws.partner], targets.shape[-1]).float()
            targets = torch.lerp(other, targets, mixed.lam.view(*shape, 1))
        return mixed.images.unflatten(0, shape), targets
