"""Golden losses: what 50 steps of every digits recipe, and of some options, compute on one thread of a CPU.

A change that should not alter numbers leaves these as they are: bit for bit on the kind of machine that recorded them,
within rounding elsewhere. A GPU is compared with the CPU beside it, with the same draws and initial weights: another
version of torch draws others.

    python tests/golden/test_golden.py                   compare all recipes
    python tests/golden/test_golden.py --device cuda     on a GPU, in float32 without TF32
    python tests/golden/test_golden.py --part 2/6        the second sixth of the recipes
    python tests/golden/test_golden.py --record FILE     measure those that FILE does not have
"""

import argparse
import hashlib
import json
import math
import platform
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Generator, Tensor
from torch.utils._pytree import tree_map_only

from mixmo.engine import Runtime, train
from mixmo.engine.batch import Batches, Draws
from mixmo.engine.source import Partners
from mixmo.engine.step import Step
from mixmo.recipes import Recipe, named, names
from mixmo.utils.rng import Stream

FILE = Path(__file__).with_name("digits.json")
STEPS = 50
CPU = torch.device("cpu")
BACKBONE = {
    **{"dataset": "digits", "model": "timm/test_resnet", "pretrained": False, "size": 32, "precision": "fp32"},
    **{"lr": 5e-4, "rho": 0.0},  # those of the recipe when these losses were recorded
}
RECIPES = {name: named(name) for name in names() if name.startswith("digits/")} | {
    "finetune/cut-mixmo": named("finetune/cut-mixmo").replace(**BACKBONE),
    "finetune/mimo, bf16": named("finetune/mimo").replace(**BACKBONE | {"precision": "bf16"}),
    "digits/cut-mixmo, adamw": named("digits/cut-mixmo").replace(
        optimizer="adamw", lr=2e-3, weight_decay=0.05, decay_norms=False, layer_decay=0.7, head_lr=2.0, clip_grad=1.0
    ),
    "digits/cut-mixmo, accumulated": named("digits/cut-mixmo").replace(grad_accum_steps=4, ghost=16, average=2.0),
    "digits/cut-mixmo, unmixing": named("digits/cut-mixmo").replace(unmix="fadeout", curriculum="ratio"),
    "digits/cut-mixmo, photo": named("digits/cut-mixmo").replace(
        auto_augment="trivialaugment", color_jitter=0.4, random_erase=0.25, crop_scale=0.5, label_smoothing=0.1
    ),
}
# What rounding alone leads further away on a CPU: with another library of convolutions, Co-Mixup's solver takes other
# labels (first losses 0.7 % off); with noise of 1e-6 in each convolution, hard PatchUp ends 7 % off, its weights 4 %.
SENSITIVE = {"digits/co-mixup": (2e-2, 0.1, 0.05), "digits/hard-patchup": (3e-4, 0.2, 0.1)}
QUICK = (  # one of each kind of step; the command measures all
    *("vanilla", "cutmix", "augmix", "manifold-mixup", "gradaug", "puzzle-mix", "de2", "mimo", "mimo-repetition"),
    *("linear-mixmo", "cut-mixmo", "cut-mixmo+cutmix", "cut-mixmo-m3", "fmix-mixmo", "shared-head"),
    *("finetune/cut-mixmo", "cut-mixmo, adamw", "cut-mixmo, accumulated", "cut-mixmo, unmixing", "cut-mixmo, photo"),
)


def machine() -> str:
    """What decides the last bits of a sum: the processor, torch."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().split("\n\n", 1)[0].splitlines() if info.is_file() else []
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    model = [value.strip() for key, value in fields.items() if key.strip() in ("cpu family", "model", "stepping")]
    kind = " ".join((platform.machine(), torch.backends.cpu.get_cpu_capability(), *model))
    return f"{kind} torch {torch.__version__.split('+')[0]}"


def measure(recipe: Recipe, folder: Path, device: str = "cpu") -> dict[str, Any]:
    """Sum of the losses after each step, and the weights at the end: their checksum and their norm."""
    losses: list[float] = []
    weights: dict[str, Tensor] = {}
    step, draw = Step.__call__, Batches.draw

    def recorded(self: Step, *given: Any) -> None:
        step(self, *given)
        losses.append(self.meter[0].item())
        weights.update({key: value.detach().cpu().clone() for key, value in self.net.state_dict().items()})

    def drawn(
        self: Batches, unique: Tensor, generator: Generator, partners: Partners | None, pool: None
    ) -> Draws:  # on the CPU, for any device
        unique, partners = tree_map_only(Tensor, Tensor.cpu, (unique, partners))
        moved: Draws = tree_map_only(Tensor, lambda x: x.to(device), draw(self, unique, generator, partners, pool))
        return moved

    with (
        patch.object(Step, "__call__", recorded),
        patch.object(Batches, "draw", drawn),
        patch("mixmo.engine.trainer.Stream", lambda seed, _: Stream(seed, CPU)),
    ):
        train(recipe.replace(epochs=10), folder, Runtime(device=device, quiet=True, compile=False), until=STEPS)
    digest = hashlib.sha256()
    for key in sorted(weights):
        digest.update(weights[key].contiguous().numpy().tobytes())
    norm = torch.stack([value.double().norm() for value in weights.values()]).norm().item()
    return {"losses": losses, "weights": digest.hexdigest(), "norm": norm}


def check(name: str, folder: Path) -> None:
    golden = json.loads(FILE.read_text())
    found, recorded = measure(RECIPES[name], folder), golden["recipes"][name]
    if machine() == golden["machine"]:
        assert found == recorded
    else:
        check_close(name, found, recorded)


def check_close(name: str, found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Compare the first losses, all losses and the norm of the weights; a message tells by how much they differ."""
    assert len(found["losses"]) == len(expected["losses"]) == STEPS * RECIPES[name].networks
    assert all(map(math.isfinite, (*found["losses"], found["norm"]))), "a loss or a weight is not finite"
    off = [abs(ours / theirs - 1) for ours, theirs in zip(found["losses"], expected["losses"], strict=True)]
    differences = max(off[:10]), max(off), abs(found["norm"] / expected["norm"] - 1)
    coarse = 10 if RECIPES[name].precision == "bf16" else 1
    limits = SENSITIVE.get(name, (coarse * 1e-4, 0.05, 0.01))
    close = all(difference <= limit for difference, limit in zip(differences, limits, strict=True))
    assert close, "first losses, losses, weights: " + ", ".join(f"{difference:.1e}" for difference in differences)


@pytest.mark.parametrize("name", [name for name in RECIPES if name.removeprefix("digits/") in QUICK])
def test_fifty_steps_give_the_recorded_losses_and_weights(name: str, tmp_path: Path) -> None:
    check(name, tmp_path / "run")


@pytest.mark.parametrize(("step", "value"), [(3, 1.001), (40, 1.1), (3, math.nan), (49, math.inf)])
def test_other_losses_are_not_close(step: int, value: float) -> None:
    expected = {"losses": [1.0] * STEPS, "norm": 1.0}
    check_close("digits/vanilla", expected, expected)
    losses = [value if i == step else 1.0 for i in range(STEPS)]
    with pytest.raises(AssertionError, match=r"first losses|not finite"):
        check_close("digits/vanilla", {"losses": losses, "norm": 1.0}, expected)


def compare(root: Path, device: str, names: list[str]) -> int:
    """Print which recipes differ, and return their number."""
    torch.backends.cudnn.allow_tf32 = False
    failed = 0
    for name in names:
        try:
            if device == "cpu":
                check(name, root / name)
            else:
                here = measure(RECIPES[name], root / name / "cpu")
                check_close(name, measure(RECIPES[name], root / name / "device", device), here)
            print(f"{name}: {'as recorded' if device == 'cpu' else 'as on the CPU'}", flush=True)
        except AssertionError as error:
            failed += 1
            print(f"{name}: differs\n{error}", flush=True)
        except Exception as error:  # the others are compared all the same
            failed += 1
            print(f"{name}: failed\n{type(error).__name__}: {error}", flush=True)
    return failed


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("recipes", nargs="*", metavar="RECIPE", help="by default all")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--part", default="1/1", help="only a part of them, as 2/6")
    parser.add_argument("--record", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as root:
        if given.record is None:
            part, parts = map(int, given.part.split("/"))
            chosen = (given.recipes or list(RECIPES))[part - 1 :: parts]
            raise SystemExit(compare(Path(root), given.device, chosen) > 0)
        known = json.loads(given.record.read_text())["recipes"] if given.record.is_file() else {}
        found = {name: known.get(name) or measure(recipe, Path(root) / name) for name, recipe in RECIPES.items()}
        lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in found.items())
        given.record.write_text(f'{{\n "machine": {json.dumps(machine())},\n "recipes": {{\n{lines}\n }}\n}}\n')
