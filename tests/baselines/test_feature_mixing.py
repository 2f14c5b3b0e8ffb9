"""Where and how often the features of a single network are mixed."""

from collections import Counter

import pytest
import torch
from torch import Tensor

from mixmo.baselines.feature_mixing import FEATURE_MIXING, draw_feature_mixing

SHAPES = [torch.Size((3, 16, 16)), torch.Size((3, 8, 8))]
DRAWS = 1000


def shares(name: str) -> list[tuple[Tensor, ...]]:
    """Own share in each stage's input, batch by batch."""
    generator = torch.Generator().manual_seed(0)
    method = FEATURE_MIXING[name]
    drawn = (draw_feature_mixing(method, 2.0, SHAPES, 4, generator) for _ in range(DRAWS))
    return [method.shares(draws)[0] for draws in drawn]


def test_manifold_mixup_uses_each_place_equally_often() -> None:
    places = Counter(tuple(bool((share != 1).any()) for share in batch) for batch in shares("manifold-mixup"))
    assert {place: sum(place) for place in places} == dict.fromkeys(places, 1)  # one place per batch
    assert [count / DRAWS for count in places.values()] == pytest.approx([1 / 3] * 3, abs=0.05)


def test_patchup_mixes_seven_batches_of_ten_at_three_places() -> None:
    """A box for all channels, or blocks by channel, before the first stage; blocks before the second."""

    def place(first: Tensor, second: Tensor) -> str:
        if bool((first != 1).any()):
            alike = torch.equal(first, first[:1].expand_as(first))
            return "box" if alike else "blocks"
        return "later" if bool((second != 1).any()) else "none"

    places = Counter(place(*batch) for batch in shares("patchup"))
    expected = {"box": 0.7 / 3, "blocks": 0.7 / 3, "later": 0.7 / 3, "none": 0.3}
    assert {name: count / DRAWS for name, count in places.items()} == pytest.approx(expected, abs=0.05)
