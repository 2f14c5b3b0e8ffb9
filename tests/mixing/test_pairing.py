"""Which images are mixed: batch repetition, one order per member, MIMO's input repetition."""

import torch
from torch import Tensor

from mixmo import Dataset
from mixmo.engine.batch import Batches
from mixmo.mixing.pairing import draw_order, pair
from mixmo.recipes import named


def loop(unique: Tensor, repetition: int, order: Tensor, rho: float, u: Tensor) -> list[list[int]]:
    batch = unique.tolist() * repetition
    rows = [[batch[place] for place in row] for row in order.tolist()]
    return [[rows[0][n] if u[n] < rho else row[n] for n in range(len(row))] for row in rows]


def test_pairs_equal_a_loop() -> None:
    for repetition in (1, 2, 4):
        order, u = draw_order(3, 32, device=torch.device("cpu")), torch.rand(32)
        unique = torch.randperm(500)[: 32 // repetition]
        for rho in (0.0, 0.5, 1.0):
            index = pair(unique, repetition, order, rho, u)
            assert index.tolist() == loop(unique, repetition, order, rho, u)
        counts = pair(unique, repetition, order)[1].bincount(minlength=500)
        assert set(counts[unique].tolist()) == {repetition}


def test_an_image_shown_to_all_members_is_cropped_once(digits: Dataset) -> None:
    """The share rho of a batch looks as it will at test time: the same pixels for every member."""
    for rho in (0.0, 0.5, 1.0):
        recipe = named("digits/mimo-repetition").replace(rho=rho, batch_size=512, repetition=1, members=3)
        batches = Batches(recipe, digits, digits.train)
        draws = batches.draw(torch.arange(512), torch.Generator().manual_seed(0))
        mix = batches.mix(draws, torch.tensor(0.0))
        same = (mix.images == mix.images[:1]).flatten(2).all(2).all(0)
        assert (same >= (draws.same < rho)).all()
        assert abs(same.double().mean() - rho) < 0.08
        assert (mix.targets == mix.targets[:1]).all(0)[same].all()
        assert len(mix.images[1].flatten(1).unique(dim=0)) > 400  # samples still differ from each other
