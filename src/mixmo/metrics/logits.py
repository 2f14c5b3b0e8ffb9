"""Logits of every head and the labels: what scores are computed from."""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor, cat


class LabelledLogits(NamedTuple):
    """The logits of every head for a split (or for those of its files that can be read), with the labels."""

    logits: Tensor  # float32 (heads, N, K)
    labels: Tensor  # (N,)

    @classmethod
    def joined(cls, parts: Sequence["LabelledLogits"]) -> "LabelledLogits":
        """Concatenate batches."""
        return cls(cat([part.logits for part in parts], dim=1), cat([part.labels for part in parts]))
