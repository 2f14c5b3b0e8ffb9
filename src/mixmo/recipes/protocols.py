"""How each data set is trained, as published (paper, appendix D): only what differs from the schema's defaults."""

from typing import Any, NamedTuple


class Facts(NamedTuple):
    """What is known of a data set without its files."""

    samples: int  # for training
    size: tuple[int, int, int]  # (C, H, W)
    classes: int


class Protocol(NamedTuple):
    summary: str
    facts: Facts
    changes: dict[str, Any]


PROTOCOLS = {
    "digits": Protocol(
        "the embedded 8x8 digits with a small WRN-10-2: the demonstration, a minute on two cores",
        Facts(1_437, (1, 8, 8), 10),
        {
            "dataset": "digits",
            "depth": 10,
            "width": 2,
            "crop": 1,
            "flip": False,
            "batch_size": 64,
            "epochs": 30,
            "lr": 0.2,
            "schedule": "cosine",
        },
    ),
    "cifar10": Protocol(
        "WRN-28-10, batch 64, 300 epochs, decay at 100, 200, 225",
        Facts(50_000, (3, 32, 32), 10),
        {"dataset": "cifar10"},
    ),
    "cifar100": Protocol(
        "WRN-28-10, batch 64, 300 epochs, decay at 100, 200, 225",
        Facts(50_000, (3, 32, 32), 100),
        {"dataset": "cifar100"},
    ),
    "tiny-imagenet": Protocol(
        "PreActResNet-18-1, batch 100, 1200 epochs, decay at 600 and 900 (one epoch earlier, as was run), lr 0.2 / b",
        Facts(100_000, (3, 64, 64), 200),
        {
            "dataset": "tiny-imagenet",
            "model": "preactresnet",
            "depth": 18,
            "width": 1,
            "batch_size": 100,
            "epochs": 1200,
            "lr": 0.256,
            "weight_decay": 1e-4,
            "decay": (599 / 1200, 899 / 1200),
        },
    ),
}
