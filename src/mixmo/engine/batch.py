"""Make a Mix from sample indices, on the device: pairing, crop, flip, AugMix, normalisation, mixing.

`draw` holds all the randomness; `mix` is a pure function of it that can be compiled and captured with the network.
"""

from typing import NamedTuple

import torch
from torch import Generator, Tensor

from mixmo.augment.augmix import AUGMIX_UNIFORMS, augmix
from mixmo.augment.auto_augment import AUTO_AUGMENT
from mixmo.augment.basic import crop_flip, enlarge, normalise, resized_crop
from mixmo.augment.photo import COLOR_JITTER_UNIFORMS, RANDOM_ERASE_UNIFORMS, color_jitter, random_erase
from mixmo.augment.pixel import AUGMENTATIONS
from mixmo.baselines.feature_mixing import FEATURE_MIXING, FeatureMixingDraws, draw_feature_mixing, stage_shapes
from mixmo.baselines.gradaug import Subnet, draw_subnets
from mixmo.baselines.saliency import SALIENCY, SaliencyDraws
from mixmo.data.types import Dataset, Split
from mixmo.engine.source import Partners, draw_partners
from mixmo.mixing.mixer import MixDraws
from mixmo.mixing.pairing import draw_order, pair
from mixmo.mixing.types import FeatureMixing, Mix
from mixmo.models import Ensemble, Network
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
    photo: Tensor | None  # (M, N, P) uniform: colour jitter, augmentation policy, random erasing, in this order
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
        photo = None if self.photo is None else self.photo[:, part]
        return self._replace(crop=self.crop[:, part], mix=mix, photo=photo, pixel=pixel)


def photo_uniforms(recipe: Recipe) -> list[int]:
    """Return how many uniform numbers colour jitter, augmentation policy and random erasing need per sample."""
    return [
        COLOR_JITTER_UNIFORMS if recipe.color_jitter else 0,
        0 if recipe.auto_augment == "none" else AUTO_AUGMENT[recipe.auto_augment][1],
        RANDOM_ERASE_UNIFORMS if recipe.random_erase else 0,
    ]


class Now(NamedTuple):
    """The point of training that a step is at, on the device."""

    chance: Tensor  # probability of a mask
    progress: Tensor  # share of training done

    @classmethod
    def at(cls, chance: float, progress: float = 0.0, device: torch.device | None = None) -> "Now":
        return cls(torch.full((), chance, device=device), torch.full((), progress, device=device))


def sharpened(gamma_MN: Tensor, progress: Tensor) -> Tensor:
    """Move the ratios towards one image early in training: kappa^(1/t), t from 0.1 to 1 over the first half."""
    return (gamma_MN / gamma_MN.amax(0)) ** (1 / (2 * progress).clamp(0.1, 1))


class Batches:
    """The batches of a recipe: `draw` holds the randomness of a step, `mix` makes its Mix of it."""

    def __init__(
        self, recipe: Recipe, dataset: Dataset, split: Split, part: slice = slice(None), net: Ensemble | None = None
    ) -> None:
        """Draw for all samples of a batch, of which `part` is made here, at the resolutions of `net`, if it is made."""
        seen = _, self.height, self.width = recipe.seen(dataset.size)
        net = net or recipe.network(len(dataset.classes), seen)
        self.part = part
        self.recipe = recipe
        self.dataset = dataset
        self.split = split
        self.mixer = recipe.mixer(net.stride)
        self.augmentation = None if recipe.pixel == "none" else AUGMENTATIONS[recipe.pixel]
        self.feature_mixing = None if recipe.feature_mixing == "none" else FEATURE_MIXING[recipe.feature_mixing]
        self.saliency = None if recipe.saliency == "none" else SALIENCY[recipe.saliency]
        self.shapes: list[torch.Size] = []  # of the features that enter each stage of the core
        if self.feature_mixing is not None:
            assert isinstance(net, Network)
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
        photo = uniform(members, n, count) if (count := sum(photo_uniforms(recipe))) else None
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
        return Draws(unique, order, same, crop, mix, photo, operations, pixel, features, subnets, pool, saliency)

    def mix(self, draws: Draws, now: Now) -> Mix:
        """Return the batch of a step at a point of training."""
        return self.mix_paired(self.paired(draws, now, self.part), now)

    def paired(self, draws: Draws, now: Now, part: slice) -> Draws:
        """Return the draws of a part of the batch, with the slot in `unique` of each member's images as `order`."""
        recipe = self.recipe
        slots_n = torch.arange(len(draws.unique), device=now.chance.device)
        same_N = self.same(draws, now)
        slot_MN = pair(slots_n, recipe.repetition, draws.order, same_N, recipe.ghosts)[:, part]
        if same_N is not None:  # an image shown to all members is cropped and flipped once, as it will be at test time
            draws = draws._replace(crop=torch.where(same_N[:, None], draws.crop[:1], draws.crop))
        if recipe.curriculum == "ratio":
            draws = draws._replace(mix=draws.mix._replace(gamma=sharpened(draws.mix.gamma, now.progress)))
        return draws.of(part)._replace(order=slot_MN)

    def mix_paired(self, draws: Draws, now: Now) -> Mix:
        """Return the mixed images and targets of draws that `paired` returned."""
        recipe, pool, slot_MN = self.recipe, draws.pool or self.split, draws.order
        index_MN = draws.unique[slot_MN]
        operations = None
        if draws.augmix is not None:
            operations = draws.augmix.gather(1, slot_MN[..., None].expand(-1, -1, draws.augmix.shape[2]))
        images = self.images(pool, index_MN, draws.crop, operations, draws.photo)
        targets = pool.labels[index_MN]
        coefficients = self.mixer.coefficients(draws.mix, now.chance, self.height, self.width)
        if self.soft:
            targets = torch.nn.functional.one_hot(targets, len(self.dataset.classes)).float()
        if draws.pixel is not None:
            images, targets = self.augment(pool, images, targets, coefficients, draws.pixel)
        if draws.feature_mixing is None:
            mix = self.mixer.assemble(images, targets, coefficients, draws.mix)
            return mix if recipe.unmix == "none" else mix._replace(visible=self.visible(coefficients, now))
        assert self.feature_mixing is not None
        shares, own = self.feature_mixing.shares(draws.feature_mixing)
        mixing = FeatureMixing(draws.feature_mixing.order, shares)
        targets = torch.lerp(targets[:, mixing.partner], targets, own)
        mix = self.mixer.assemble(images, targets, coefficients, draws.mix)
        return mix._replace(weights=mix.weights * self.feature_mixing.weight, feature_mixing=mixing)

    def same(self, draws: Draws, now: Now) -> Tensor | None:
        """Return which samples show one image to all members; None if there are none."""
        if self.recipe.curriculum == "repetition":
            return draws.same < (1 - 2 * now.progress).clamp_min(self.recipe.rho)
        return draws.same < self.recipe.rho if self.recipe.rho > 0 else None

    def visible(self, coefficients: Tensor, now: Now) -> Tensor:
        """Return the weights of unmixing: the mask of each head, which fadeout turns into ones by the end."""
        if self.recipe.unmix == "mask":
            return coefficients
        return coefficients + now.progress * (1 - coefficients)

    @property
    def soft(self) -> bool:
        """Whether targets are distributions over the classes rather than class indices."""
        mixes_labels = self.augmentation is not None and self.augmentation.needs_partner
        mixes_labels = mixes_labels or self.feature_mixing is not None or self.saliency is not None
        return mixes_labels or self.mixer.association == "interpolated"

    def images(
        self,
        pool: Split,
        index_MN: Tensor,
        crop_MNP: Tensor,
        operations_MNP: Tensor | None = None,
        photo_MNP: Tensor | None = None,
    ) -> Tensor:
        """Crop, flip, augment and normalise samples to (M, N, C, H, W)."""
        recipe, index, u = self.recipe, index_MN.flatten(), crop_MNP.flatten(0, 1)
        if recipe.crop_scale < 1:
            pixels = resized_crop(pool.resident, index, u, self.height, recipe.crop_scale, recipe.flip)
        else:
            _, height, width, _ = pool.resident.shape
            size = None if (recipe.size or 0) > min(height, width) else recipe.size
            pixels = enlarge(crop_flip(pool.resident, index, u, recipe.crop, recipe.flip, size), recipe.size)
        if operations_MNP is not None:
            pixels = augmix(pixels, operations_MNP.flatten(0, 1))
        if photo_MNP is None:
            images = normalise(pixels, self.dataset.mean, self.dataset.std)
        else:
            jitter_NP, policy_NP, erase_NP = photo_MNP.flatten(0, 1).split(photo_uniforms(recipe), 1)
            if recipe.color_jitter:
                pixels = color_jitter(pixels, jitter_NP, recipe.color_jitter)
            if recipe.auto_augment != "none":
                pixels = AUTO_AUGMENT[recipe.auto_augment][0](pixels, policy_NP)
            images = normalise(pixels, self.dataset.mean, self.dataset.std)
            if recipe.random_erase:
                images = random_erase(images, erase_NP, recipe.random_erase)
        return images.unflatten(0, index_MN.shape)  # type: ignore[no-any-return]

    def augment(
        self, pool: Split, images: Tensor, targets: Tensor, coefficients: Tensor, draws: PixelDraws
    ) -> tuple[Tensor, Tensor]:
        """Augment each member's input under its own mask; targets (M, N) stay, (M, N, K) are mixed."""
        assert self.augmentation is not None
        shape = images.shape[:2]
        partner = images if draws.partner is None else self.images(pool, draws.partner, draws.crop)
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
