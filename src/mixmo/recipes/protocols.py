"""How each data set is trained, as published (paper, appendix D): only what differs from the schema's defaults."""

from typing import Any, NamedTuple


class Protocol(NamedTuple):
    summary: str
    changes: dict[str, Any]


PROTOCOLS = {
    "digits": Protocol(
        "the embedded 8x8 digits with a small WRN-10-2: the demonstration, a minute on two cores",
        {
            "dataset": "digits",
            "depth": 10,
            "width": 2,
            "crop": 1,
            "flip": False,
            "batch_size": 64,
            "epochs": 40,
            "lr": 0.2,
            "schedule": "cosine",
        },
    ),
    "cifar10": Protocol("WRN-28-10, batch 64, 300 epochs, decay at 100, 200, 225", {"dataset": "cifar10"}),
    "cifar100": Protocol("WRN-28-10, batch 64, 300 epochs, decay at 100, 200, 225", {"dataset": "cifar100"}),
    "tiny-imagenet": Protocol(
        "PreActResNet-18-1, batch 100, 1200 epochs, decay at 600 and 900 (one epoch earlier, as was run), lr 0.2 / b",
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
