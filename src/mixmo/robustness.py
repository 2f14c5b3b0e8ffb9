"""How runs fare on images unlike those they were trained on: corrupted ones, and ones of another data set.

N runs are one ensemble of all their members, as everywhere. Only the weights are needed, and for the clean test set the
stored logits; one corruption of one severity is in memory at a time.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mixmo import data
from mixmo.augment.basic import centre, fit
from mixmo.data import folder as folders
from mixmo.data.corrupted import COMMON, Cell, corrupted
from mixmo.data.progress import track
from mixmo.data.registry import where
from mixmo.errors import UserError
from mixmo.evaluation import load_network, run_logits, stack
from mixmo.metrics import DETECTORS, METRICS, aupr, auroc, fpr95
from mixmo.models import Network
from mixmo.predict import predict_split
from mixmo.runs import Run
from mixmo.types import Dataset, Split

SCORES = ("top1", "top5", "nll")  # without temperature, as in the paper's table


class Member(NamedTuple):
    """A trained network, with what its run says of its images."""

    run: Run
    net: Network
    about: dict[str, Any]  # dataset.json

    def logits(self, images_NHWC: Tensor) -> Tensor:
        """Every head's logits (heads, N, K)."""
        split = Split(images_NHWC, torch.zeros(len(images_NHWC), dtype=torch.int64))
        about = self.about
        dataset = Dataset(
            about["name"], split, split, tuple(about["classes"]), tuple(about["mean"]), tuple(about["std"])
        )
        return predict_split(self.net, dataset, split, size=self.run.recipe.size).logits


def load_members(runs: Sequence[Run], which: str, device: torch.device) -> list[Member]:
    """The networks of the runs, on the device."""
    return [Member(run, load_network(run, which).to(device), run.json("dataset.json")) for run in runs]


def score_corruptions(
    runs: Sequence[Run], folder: Path, which: str, device: torch.device, root: Path | None = None
) -> dict[str, Any]:
    """Top1, Top5 and NLL of the ensemble on every corruption and severity in `folder`, in the layout of CIFAR-C.

    `pooled`: over all images of all corruptions and severities, as the paper (19 x 5). `mce`: the mean error, 1 - Top1,
    over the 15 common corruptions, unnormalised as is usual on CIFAR; the mCE that divides by AlexNet's errors is
    ImageNet-C's. It is None if one of the 15 is not in the folder.
    """
    cells = corrupted(folder)
    clean_MNK, clean_labels_N = stack([run_logits(run, which, "logits", device, root) for run in runs], runs)
    members = load_members(runs, which, device)
    for member in members:
        _check_fit(member, cells[0], folder, clean_labels_N)
    each: dict[str, dict[str, dict[str, float]]] = {}
    for cell in track(cells, f"scoring {folder.name}"):
        split = cell.split
        images_NHWC, labels_N = split.resident.to(device), split.labels.to(device)
        logits_MNK = torch.cat([member.logits(images_NHWC) for member in members])
        each.setdefault(cell.name, {})[str(cell.severity)] = score(logits_MNK, labels_N)
    common = [scores for name in each if name in COMMON for scores in each[name].values()]
    complete = set(COMMON) <= set(each)
    return {
        "folder": str(folder),
        "which": which,
        "images": len(clean_labels_N),
        "clean": score(clean_MNK, clean_labels_N),
        "pooled": _mean([scores for name in each for scores in each[name].values()]),  # all cells have as many images
        "mce": 1 - _mean(common)["top1"] if complete else None,
        "corruptions": each,
    }


def _check_fit(member: Member, cell: Cell, folder: Path, labels_N: Tensor) -> None:
    channels, height, width = member.about["size"]
    seen_NHWC = centre(cell.split.resident[:1], member.run.recipe.size)
    if seen_NHWC.shape[1:] != (height, width, channels):
        size = "x".join(str(side) for side in seen_NHWC.shape[1:])
        raise UserError(
            f"{member.run.path} was trained on images of {height}x{width}x{channels} and {folder} holds {size}; "
            "give the corrupted images of its own data set"
        )
    if not torch.equal(cell.labels, labels_N):
        raise UserError(
            f"{folder} does not hold the test set of {member.run.path}, {member.about['name']}: its labels differ; "
            "give the corrupted images of that data set"
        )


def score(logits_MNK: Tensor, labels_N: Tensor) -> dict[str, float]:
    """`SCORES` of the ensemble."""
    mean_NK = logits_MNK.double().mean(0)
    return {name: METRICS[name](mean_NK, labels_N).item() for name in SCORES}


def _mean(scores: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: sum(s[name] for s in scores) / len(scores) for name in SCORES}


def score_ood(
    runs: Sequence[Run], name: str, which: str, device: torch.device, root: Path | None = None, source: str = "logits"
) -> dict[str, Any]:
    """How well each detector tells the test images of data set `name` from the runs' own: AUROC, AUPR, FPR95.

    The foreign images are the positives. They are brought to the size and the channels of the runs' own images and
    normalised like them, so that neither size nor range gives them away.
    """
    about = [run.json("dataset.json") for run in runs]
    if folders.same(name, about[0]["name"], where(root)):
        raise UserError(f"--ood {name} is what {runs[0].path} was trained on; give another data set")
    inside_MNK, labels_N = stack([run_logits(run, which, source, device, root) for run in runs], runs)
    foreign = data.load(name, root, train=False).test
    members = load_members(runs, which, device)
    outside_MNK = torch.cat([_foreign_logits(member, foreign, device) for member in members])
    detectors = {}
    for detector in DETECTORS:
        inside, outside = DETECTORS[detector](inside_MNK), DETECTORS[detector](outside_MNK)
        found = {"auroc": auroc(inside, outside), "aupr": aupr(inside, outside), "fpr95": fpr95(inside, outside)}
        detectors[detector] = {key: value.item() for key, value in found.items()}
    return {
        "inside": about[0]["name"],
        "outside": name,
        "which": which,
        "inside_images": len(labels_N),
        "outside_images": outside_MNK.shape[1],
        "detectors": detectors,
    }


def _foreign_logits(member: Member, split: Split, device: torch.device) -> Tensor:
    images = (fit(part.resident.to(device), *member.about["size"]) for part in split.batches(500))
    return torch.cat([member.logits(images_NHWC).cpu() for images_NHWC in images], 1)
