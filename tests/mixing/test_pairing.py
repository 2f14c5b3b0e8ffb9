"""Which images are mixed: batch repetition, one order per member, MIMO's input repetition."""

from collections import Counter
from itertools import permutations

import numpy as np
import pytest
import torch
from torch import Tensor

from mixmo import Dataset
from mixmo.engine.batch import Batches, Now
from mixmo.mixing.pairing import draw_order, pair, steps_per_epoch
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
            index = pair(unique, repetition, order, u < rho)
            assert index.tolist() == loop(unique, repetition, order, rho, u)
        counts = pair(unique, repetition, order)[1].bincount(minlength=500)
        assert set(counts[unique].tolist()) == {repetition}


def test_an_image_shown_to_all_members_is_cropped_once(digits: Dataset) -> None:
    """The share rho of a batch looks as it will at test time: the same pixels for every member."""
    for rho in (0.0, 0.5, 1.0):
        recipe = named("digits/mimo-repetition").replace(rho=rho, batch_size=512, repetition=1, members=3)
        batches = Batches(recipe, digits, digits.train)
        draws = batches.draw(torch.arange(512), torch.Generator().manual_seed(0))
        mix = batches.mix(draws, Now.at(0.0))
        same = (mix.images == mix.images[:1]).flatten(2).all(2).all(0)
        assert (same >= (draws.same < rho)).all()
        assert abs(same.double().mean() - rho) < 0.08
        assert (mix.targets == mix.targets[:1]).all(0)[same].all()
        assert len(mix.images[1].flatten(1).unique(dim=0)) > 400  # samples still differ from each other


def test_pairing_repeats_and_shuffles_each_member(reference: dict[str, np.ndarray]) -> None:
    """As in the reference: each member sees each of the n samples b times; an image may meet itself."""
    unique = torch.tensor(sorted(set(reference["sampler/b4_index01"][0, :, 0].tolist())))
    index = pair(unique, 4, draw_order(2, 64, device=unique.device))
    for member, known in ((index[0], 0), (index[1], 1)):
        assert sorted(member.tolist()) == sorted(reference["sampler/b4_index01"][0, :, known].tolist())
    assert not torch.equal(index[0], index[1])


def test_orders_are_equally_likely_permutations() -> None:
    order = draw_order(6000, 3, device=torch.device("cpu"), generator=torch.Generator().manual_seed(0))
    times = Counter(map(tuple, order.tolist()))
    assert set(times) == set(permutations(range(3)))
    assert all(abs(count - 1000) < 150 for count in times.values())  # five standard deviations


def test_input_repetition_shows_a_share_rho_to_all_members() -> None:
    unique = torch.arange(1000)
    index = pair(unique, 1, draw_order(3, 1000, device=unique.device), torch.rand(1000) < 0.4)
    same = (index == index[0]).all(0).float().mean().item()
    assert same == pytest.approx(0.4, abs=0.05)


def test_steps_per_epoch_equal_the_reference(reference: dict[str, np.ndarray]) -> None:
    assert [steps_per_epoch(50_000, 64, b) for b in (1, 2, 4)] == reference["sampler/steps_50000_64_b124"].tolist()
