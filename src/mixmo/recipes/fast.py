"""Fast recipes, such as `cifar100/cut-mixmo-fast`: the same method, network and test protocol in less time.

They differ from the published protocol in batch size 256, bfloat16, a cosine schedule and 140 epochs. The learning rate
was tuned on held-out training images (docs/guides/train.md). On one H200, WRN-28-10 with b = 2 takes about 10 s per
epoch; `mixmo train cifar100/cut-mixmo-fast --minutes 25 --out DIR` chooses the epochs that fit into the time on any
device.
"""

from typing import Any

SUFFIX = "-fast"
METHODS_FAST = ("vanilla", "cutmix", "mimo", "linear-mixmo", "cut-mixmo", "cut-mixmo+cutmix")
CIFAR = {"batch_size": 256, "precision": "bf16", "schedule": "cosine", "lr": 0.2, "warmup": 2.0, "epochs": 140}
FAST: dict[str, dict[str, Any]] = {"cifar10": CIFAR, "cifar100": CIFAR}
