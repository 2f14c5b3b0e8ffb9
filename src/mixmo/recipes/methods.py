"""Methods of the paper's tables: what each changes in the protocol of its data set.

Other settings that the tables vary are fields: `--repetition 4`, `--width 4`, `--r .inf`, `--p 0.2`, `--alpha 4`.
"""

from typing import Any, NamedTuple


class Method(NamedTuple):
    summary: str
    changes: dict[str, Any]  # fields that it sets
    on: dict[str, dict[str, Any]] = {}  # noqa: RUF012 - further changes by data set


SINGLE: dict[str, Any] = {"members": 1, "mask": "sum", "p": 0.0, "repetition": 1}
LINEAR: dict[str, Any] = {"mask": "linear", "p": 0.0}
MIMO: dict[str, Any] = {"mask": "sum", "p": 0.0, "r": 1.0}
CUTMIX = {"pixel": "cutmix"}
AUGMIX = {"augmix": True}

METHODS = {
    # Single networks (tables 1, 4, 5, 7 and 8)
    "vanilla": Method("one standard network", SINGLE),
    "mixup": Method("Mixup", SINGLE | {"pixel": "mixup"}),
    "cutmix": Method("CutMix", SINGLE | CUTMIX),
    "resizemix": Method("ResizeMix: an image is scaled down and pasted onto another", SINGLE | {"pixel": "resizemix"}),
    "cutout": Method("Cutout: a box of the image is set to zero", SINGLE | {"pixel": "cutout"}),
    "augmix": Method("AugMix, without its Jensen-Shannon loss", SINGLE | AUGMIX),
    "manifold-mixup": Method(
        "Manifold Mixup: Mixup of the features at a random stage", SINGLE | {"feature_mixing": "manifold-mixup"}
    ),
    "hard-patchup": Method(
        "Hard PatchUp: blocks of features are swapped at a random stage", SINGLE | {"feature_mixing": "patchup"}
    ),
    "mixup-ba": Method(
        "Mixup with batch augmentation: 10 augmented copies of each image per batch, ten times the batch size",
        SINGLE | {"pixel": "mixup", "repetition": 10, "batch_size": 640, "ghost": 0},
        {"tiny-imagenet": {"batch_size": 1000}, "imagenet": {"batch_size": 2560}},
    ),
    "gradaug": Method("GradAug: narrower sub-networks learn the predictions of the network", SINGLE | {"subnets": 3}),
    "gradaug+cutmix": Method("GradAug with CutMix", SINGLE | CUTMIX | {"subnets": 3}),
    "puzzle-mix": Method(
        "Puzzle-Mix: two images, mixed by the mask that keeps most of the saliency, with transport of blocks",
        SINGLE | {"saliency": "puzzle-mix", "alpha": 1.0},
        {"cifar10": {"transport": 4}, "cifar100": {"transport": 4}, "tiny-imagenet": {"clean": 1.0}},
    ),
    "co-mixup": Method(
        "Co-Mixup: blocks of up to 20 images, mixed for saliency and diversity; plus the loss on unmixed images",
        SINGLE | {"saliency": "co-mixup", "alpha": 2.0, "clean": 1.0},
    ),
    # Deep ensembles of independent networks
    "de2": Method("deep ensemble of 2 vanilla networks", SINGLE | {"networks": 2}),
    "de2+cutmix": Method("deep ensemble of 2 networks with CutMix", SINGLE | CUTMIX | {"networks": 2}),
    "de2+augmix": Method("deep ensemble of 2 networks with AugMix", SINGLE | AUGMIX | {"networks": 2}),
    "de3": Method("deep ensemble of 3 vanilla networks", SINGLE | {"networks": 3}),
    "de4": Method("deep ensemble of 4 vanilla networks", SINGLE | {"networks": 4}),
    # Multiple inputs and outputs
    "mimo": Method("MIMO: encodings summed, kappa = 1/M", MIMO),
    "mimo-m3": Method("MIMO with 3 members", MIMO | {"members": 3}),
    "mimo-repetition": Method("MIMO with input repetition rho = 0.5", MIMO | {"rho": 0.5}),
    "aggregated-learning": Method("Aggregated Learning: encodings concatenated by channels", MIMO | {"mask": "concat"}),
    "linear-mixmo": Method("Linear-MixMo: encodings interpolated, kappa ~ Beta(2, 2)", LINEAR),
    "linear-mixmo+cutmix": Method("Linear-MixMo with CutMix", LINEAR | CUTMIX),
    "linear-mixmo+augmix": Method("Linear-MixMo with AugMix", LINEAR | AUGMIX),
    "cut-mixmo": Method(
        "Cut-MixMo: a patch of one encoding pasted onto the other",
        {},
        {
            "finetune": {"rho": 0.25}
        },  # without it, members are behind a plain network after 20 epochs; at 0.5, overconfident
    ),
    "cut-mixmo+cutmix": Method("Cut-MixMo with CutMix", CUTMIX),
    "cut-mixmo+augmix": Method("Cut-MixMo with AugMix", AUGMIX),
    "2-cut-mixmos": Method("ensemble of 2 Cut-MixMos: 4 predictions", {"networks": 2}),
    "2-cut-mixmos+cutmix": Method("ensemble of 2 Cut-MixMos with CutMix", CUTMIX | {"networks": 2}),
    "3-cut-mixmos+cutmix": Method("ensemble of 3 Cut-MixMos with CutMix", CUTMIX | {"networks": 3}),
    "cut-mixmo-m3": Method("Cut-MixMo with 3 members", {"members": 3}),
    # Other masks in the mixing block (table 2)
    "horizontal-mixmo": Method("MixMo with the two encodings side by side", {"mask": "horizontal"}),
    "vertical-mixmo": Method("MixMo with one encoding above the other", {"mask": "vertical"}),
    "patchup-mixmo": Method("MixMo with blocks of one encoding pasted onto the other", {"mask": "patchup"}),
    "fmix-mixmo": Method("MixMo with FMix masks: irregular regions from low-frequency noise", {"mask": "fmix"}),
    "cow-mixmo": Method("MixMo with CowMix masks: irregular spots", {"mask": "cow"}),
    # Encoders and classifiers (table 3)
    "shared-all": Method(
        "1 encoder, 1 classifier, interpolated labels", {"encoders": 1, "heads": 1, "association": "interpolated"}
    ),
    "shared-head": Method("2 encoders, 1 classifier, interpolated labels", {"heads": 1, "association": "interpolated"}),
    "shared-encoder-random": Method("1 encoder, 2 classifiers at random", {"encoders": 1, "association": "random"}),
    "shared-encoder-predominant": Method(
        "1 encoder, 2 classifiers: the first for the more visible input", {"encoders": 1, "association": "predominant"}
    ),
}
