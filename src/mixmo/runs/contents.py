"""Validate the JSON files of a run: they may be damaged or untrusted."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from mixmo.models.metadata import LARGEST

SCORES = ("top1", "top5", "nll", "nllc", "ece", "brier")


def is_dataset(content: Any) -> bool:
    """Return whether this is the content of dataset.json: class names, normalisation and image size."""
    if not isinstance(content, dict):
        return False
    size: Any = content.get("size")
    resize, images = content.get("resize"), content.get("images", [0])
    return (
        isinstance(content.get("name"), str)
        and _is_list(content.get("classes"), str)
        and _is_list(size, int, 3)
        and all(0 < side <= LARGEST for side in size)
        and all(_is_list(content.get(key), int | float, size[0]) for key in ("mean", "std"))
        and (resize is None or (_is_whole(resize) and max(size[1:]) <= resize <= LARGEST))
        and _is_list(images, int)  # earlier versions did not count them
        and len(images) > 0
    )


def is_scores(content: Any, epochs: tuple[str, ...]) -> bool:
    """Return whether this is the content of scores.json, with the scores of the ensemble at these epochs."""
    if not isinstance(content, dict):
        return False
    return all(isinstance(content.get(each), dict) and _is_numbers(content[each].get("ensemble")) for each in epochs)


def is_line(content: Any) -> bool:
    """Return whether this is a line of metrics.jsonl: an object with its epoch, and its step if it has one."""
    return (
        isinstance(content, dict)
        and _is_whole(content.get("epoch"))
        and _is_whole(content.get("step", 0))
        and isinstance(content.get("test", {}), dict)
        and _is_numbers(content.get("test", {}).get("ensemble", {}))
    )


def is_state(content: Any) -> bool:
    """Return whether this is the content of a checkpoint's state.json."""
    if not isinstance(content, dict):
        return False
    names = ("best_step", "loss_scale", "maxima", "teacher", "logged")
    best, scale, maxima, teacher, logged = (content.get(key) for key in names)
    return (
        all(_is_whole(content.get(key, 0)) for key in ("step", "epochs_logged", "rollbacks"))
        and any(_is_list(content.get("meter"), int | float, length) for length in (2, 4))  # earlier versions had two
        and (best is None or _is_whole(best))
        and all(_is_number(content.get(key, 0)) for key in ("best_top1", "best_nll", "seconds"))
        and (scale is None or _is_list(scale, int | float, 2))
        and (maxima is None or (isinstance(maxima, dict) and all(map(_is_number, maxima.values()))))
        and (teacher is None or isinstance(teacher, str))
        and (logged is None or isinstance(logged, dict))
    )


def is_nonfinite_event(content: Any) -> bool:
    """Return whether this is the content of nonfinite.json: a step, and the rollbacks before it."""
    return isinstance(content, dict) and all(_is_whole(content.get(key)) for key in ("step", "rollbacks"))


def is_logits(content: Mapping[str, Tensor]) -> bool:
    """Return whether these are the tensors of a file of logits: logits (heads, N, K) and labels (N,)."""
    logits, labels = content.get("logits"), content.get("labels")
    return (
        logits is not None
        and labels is not None
        and logits.dim() == 3
        and logits.is_floating_point()
        and labels.dtype == torch.int64
        and labels.shape == logits.shape[1:2]
    )


def _is_list(value: Any, kind: Any, length: int | None = None) -> bool:
    if not isinstance(value, list) or length not in (None, len(value)):
        return False
    return all(isinstance(each, kind) and not isinstance(each, bool) for each in value)


def _is_whole(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _is_number(value: Any) -> bool:
    return _is_float(value) and math.isfinite(value)


def _is_numbers(value: Any) -> bool:
    """Whether it is an object in which each of `SCORES` is a number, null or missing."""
    return isinstance(value, dict) and all(value.get(key) is None or _is_float(value[key]) for key in SCORES)


def _is_float(value: Any) -> bool:
    return type(value) in (int, float)
