"""Logits of every head and the labels: what scores are computed from."""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor, cat


class LabelledLogits(NamedTuple):
    """What every head says of a split, or of those of its files that can be read."""

    logits: Tensor  # float32 (heads, N, K)
    labels: Tensor  # (N,)

    @classmethod
    def joined(cls, parts: Sequence["LabelledLogits"]) -> "LabelledLogits":
        """Those to the batches of a split as those to all of it."""
        return cls(cat([part.logits for part in parts], dim=1), cat([part.labels for part in parts]))
