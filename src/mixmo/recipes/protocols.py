"""Published training protocol of each data set (paper, appendix D): what differs from the defaults of `Recipe`."""

from typing import Any, NamedTuple


class Facts(NamedTuple):
    """Size of a data set, known without its files."""

    samples: int  # training images
    tested: int  # test images
    size: tuple[int, int, int]  # (C, H, W)
    classes: int


class Protocol(NamedTuple):
    summary: str
    facts: Facts
    changes: dict[str, Any]  # fields that it sets


PROTOCOLS = {
    "digits": Protocol(
        "the embedded 8x8 digits with a small WRN-10-2: a demonstration of about a minute on two CPU cores",
        Facts(1_437, 360, (1, 8, 8), 10),
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
        Facts(50_000, 10_000, (3, 32, 32), 10),
        {"dataset": "cifar10"},
    ),
    "cifar100": Protocol(
        "WRN-28-10, batch 64, 300 epochs, decay at 100, 200, 225",
        Facts(50_000, 10_000, (3, 32, 32), 100),
        {"dataset": "cifar100"},
    ),
    "tiny-imagenet": Protocol(
        "PreActResNet-18-1, batch 100, 1200 epochs, decay at 600 and 900 (run one epoch earlier), lr 0.2 / b",
        Facts(100_000, 10_000, (3, 64, 64), 200),
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
    # The paper only says that it follows MIMO's protocol. This is the protocol of MIMO's code (ResNet-50;
    # google/uncertainty-baselines, baselines/imagenet/mimo.py): learning rate 0.1 for 256 distinct images per step,
    # decay after 30/90, 60/90 and 80/90 of the epochs, 1e-4 |w|^2 in the loss (there not on batch normalisation; here
    # on all parameters). It ran 2,048 distinct images per step; 256, images of 256 and crops of 224 pixels are usual.
    "imagenet": Protocol(
        "ResNet-18-1, batch 256, 150 epochs, decay at 50, 100, 133, warm-up 5: MIMO's protocol; files in DATA/imagenet",
        Facts(1_281_167, 50_000, (3, 256, 256), 1_000),
        {
            "dataset": "folder:imagenet@256",
            "model": "resnet",
            "depth": 18,
            "width": 1,
            "size": 224,
            "crop": 0,
            "crop_scale": 0.08,
            "batch_size": 256,
            "epochs": 150,
            "lr": 0.05,
            "weight_decay": 2e-4,
            "warmup": 5.0,
            "decay": (50 / 150, 100 / 150, 133 / 150),
        },
    ),
}
FACTS: dict[str, Facts] = {protocol.changes["dataset"]: protocol.facts for protocol in PROTOCOLS.values()}
