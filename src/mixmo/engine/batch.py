"""From sample numbers to a Mix, on the device: pairing, crop, flip, normalisation, mixing.

`draw` holds all the randomness of a step; `mix` is a pure function of it, without a host sync or a loop over samples,
so that it can be compiled and captured together with the network.
"""

from typing import NamedTuple

import torch
from torch import Generator, Tensor

from mixmo.augment.basic import crop_flip, normalise
from mixmo.mixing import MixDraws
from mixmo.pairing import pair
from mixmo.recipes.schema import Recipe
from mixmo.types import Dataset, Mix, Split


class Draws(NamedTuple):
    """All the randomness of one training step."""

    unique: Tensor  # (n,) numbers of the samples of this step, each to be repeated b times
    order: Tensor  # (M, N) uniform: the order of the batch for each member
    same: Tensor  # (N,) uniform: input repetition
    crop: Tensor  # (M, N, 3) uniform: place of the crop, flip
    mix: MixDraws


class Batches:
    """The training batches of a recipe over a split."""

    def __init__(self, recipe: Recipe, dataset: Dataset, split: Split, stride: int) -> None:
        self.recipe = recipe
        self.dataset = dataset
        self.split = split
        self.mixer = recipe.mixer(stride)

    def draw(self, unique: Tensor, generator: Generator) -> Draws:
        """The randomness of a step over these samples."""
        members, n = self.recipe.members, self.recipe.batch_size
        device = unique.device
        height, width = self.split.images.shape[1:3]
        shapes = ((members, n), (n,), (members, n, 3))
        order, same, crop = (torch.rand(s, device=device, generator=generator) for s in shapes)
        return Draws(unique, order, same, crop, self.mixer.draw(n, height, width, device, generator))

    def mix(self, draws: Draws, chance: Tensor) -> Mix:
        """The step's batch; `chance` is the probability of a mask at this point of training."""
        recipe, split = self.recipe, self.split
        index_MN = pair(draws.unique, recipe.repetition, draws.order, recipe.rho, draws.same)
        index = index_MN.flatten()
        cropped = crop_flip(split.images, index, draws.crop.flatten(0, 1), pad=recipe.crop, flip=recipe.flip)
        images = normalise(cropped, self.dataset.mean, self.dataset.std).unflatten(0, index_MN.shape)
        targets = split.labels[index_MN]
        if self.mixer.association == "interpolated":
            targets = torch.nn.functional.one_hot(targets, len(self.dataset.classes)).float()
        height, width = split.images.shape[1:3]
        coefficients = self.mixer.coefficients(draws.mix, chance, height, width)
        return self.mixer.assemble(images, targets, coefficients, draws.mix)
