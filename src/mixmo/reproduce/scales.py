"""How much of the published protocol is run: all of it, or less of everything in one table alike."""

import math
from typing import Any, NamedTuple


class Reduced(NamedTuple):
    changes: dict[str, Any]  # to the protocol of one data set
    widest: float = math.inf  # networks wider than that are left out, or narrowed
    narrow: bool = False
    dataset: str | None = None  # that stands in for it


class Scale(NamedTuple):
    summary: str
    seeds: int | None  # None: as published
    protocols: dict[str, Reduced]  # what is not here is not run at this scale


FAST = {"batch_size": 256, "ghost": 64, "precision": "bf16"}
TINY = FAST | {"ghost": 128}  # published with batches of 100
# A cosine, because the published steps are for 300 epochs (docs/guides/reproduce.md).
HOUR = Reduced({"epochs": 100, "schedule": "cosine", "width": 4, **FAST}, widest=4)
HOUR_TINY = Reduced({"epochs": 100, "schedule": "cosine", "width": 2, **TINY}, widest=2)
MINUTES = Reduced({"epochs": 10, "width": 2, **FAST}, widest=2)
MINUTES_TINY = Reduced({"epochs": 5, "width": 1, **TINY}, widest=1)
SMOKE = Reduced({"epochs": 2, "width": 1, "batch_size": 128}, widest=2, narrow=True, dataset="digits")
ALL = ("cifar10", "cifar100", "tiny-imagenet", "imagenet")

SCALES = {
    "paper": Scale("the published protocol and number of seeds", None, {name: Reduced({}) for name in ALL}),
    "hour": Scale(
        "100 epochs with a cosine, WRN-28-4 or PreActResNet-18-2 where the table does not vary the width, batch 256 in "
        "ghosts, bf16",
        1,
        {"cifar10": HOUR, "cifar100": HOUR, "tiny-imagenet": HOUR_TINY},
    ),
    "minutes": Scale(
        "10 epochs of CIFAR, 5 of Tiny ImageNet, WRN-28-2 or PreActResNet-18-1, batch 256 in ghosts, bf16",
        1,
        {"cifar10": MINUTES, "cifar100": MINUTES, "tiny-imagenet": MINUTES_TINY},
    ),
    "smoke": Scale(
        "2 epochs on the embedded digits with WRN-10-1, or WRN-10-2 for whatever the table has wider: shows that it "
        "works, says nothing about the method",
        1,
        dict.fromkeys(ALL, SMOKE),
    ),
}
