"""Predictions in words: the names of classes and of the classes in a prediction set."""

from collections.abc import Sequence

from mixmo.inference.prediction import Prediction


def names_or_numbers(classes: Sequence[str] | None, count: int) -> Sequence[str]:
    """Return the names of the classes; their numbers where they have none.

    >>> names_or_numbers(None, 2)
    ['0', '1']
    """
    return classes or [str(k) for k in range(count)]


def named_sets(prediction: Prediction, names: Sequence[str]) -> list[list[str]]:
    """Return the conformal prediction set of each image, its most probable class first."""
    orders = prediction.probs.argsort(dim=1, descending=True).tolist()
    pairs = zip(orders, prediction.sets.tolist(), strict=True)
    return [[names[k] for k in order if inside[k]] for order, inside in pairs]
