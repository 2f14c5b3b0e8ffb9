"""Recipes for a pretrained backbone and your own images, such as `finetune/cut-mixmo`.

    mixmo train finetune/cut-mixmo --model timm/resnet50 --dataset folder:photos@224 --out runs/photos

AdamW with layer-wise learning-rate decay, random resized crops, a cosine of 20 epochs, a tenth of the training images
held out for the choice of the epoch and for calibration. finetune/cut-mixmo shows a quarter of the samples as one
image to both members (rho = 0.25), the other recipes none. docs/results/fine-tuning.md has the measured scores.
"""

from typing import Any

NAME = "finetune"
METHODS_FINETUNE = ("vanilla", "mixup", "cutmix", "mimo", "linear-mixmo", "cut-mixmo", "cut-mixmo+cutmix")
SUMMARY = "fine-tuning of a pretrained backbone on your own images; give --model and --dataset"
FINETUNE: dict[str, Any] = {
    "dataset": "folder:photos@224",
    "model": "timm/resnet50",
    "pretrained": True,
    "validation": 0.1,
    "crop": 0,
    "crop_scale": 0.35,
    "batch_size": 64,
    "epochs": 20,
    "optimizer": "adamw",
    "lr": 4e-3,
    "weight_decay": 0.05,
    "decay_norms": False,
    "layer_decay": 0.9,
    "clip_grad": 1.0,
    "warmup": 2.0,
    "schedule": "cosine",
    "precision": "bf16",
}
