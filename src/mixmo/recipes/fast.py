"""The fast family, `cifar100/cut-mixmo-fast` and others: the same methods, networks and test protocol, less time.

What differs from the published protocol: batches of 256 in bfloat16, a cosine in the place of the steps, fewer epochs.
The learning rate was chosen on held-out training images (docs/training.md). An H200 takes about 10 s an epoch of
WRN-28-10 with b = 2; `mixmo train cifar100/cut-mixmo-fast --minutes 25 --out DIR` fits the epochs to any device.
"""

from typing import Any

SUFFIX = "-fast"
METHODS_FAST = ("vanilla", "cutmix", "mimo", "linear-mixmo", "cut-mixmo", "cut-mixmo+cutmix")
CIFAR: dict[str, Any] = {
    "batch_size": 256,
    "precision": "bf16",
    "schedule": "cosine",
    "lr": 0.2,
    "warmup": 2.0,
    "epochs": 140,
}
FAST = {"cifar10": CIFAR, "cifar100": CIFAR}
