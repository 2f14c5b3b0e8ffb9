"""What test_distributed.py lets torchrun start twice. `python two_processes.py FOLDER [lose]`."""

import itertools
import json
import os
import sys
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist
from PIL import Image
from torch import nn

from mixmo import UserError, data
from mixmo.cli.app import main as mixmo
from mixmo.data.types import Dataset
from mixmo.engine import Runtime, train
from mixmo.engine.distributed import end
from mixmo.engine.initialization import fresh_network
from mixmo.engine.norm import GlobalBatchNorm, average_statistics
from mixmo.engine.scoring import Scorer
from mixmo.engine.step import Step
from mixmo.engine.trainer import Trainer
from mixmo.mixing.masks import MASKS, Mask, cut
from mixmo.models import Network
from mixmo.recipes import Recipe, named
from mixmo.runs.directory import Run

RUNTIME = Runtime(device="cpu", quiet=True)
RECIPES = {
    "cut-mixmo": named("digits/cut-mixmo").replace(width=1),
    "mimo": named("digits/mimo-repetition").replace(width=1),
    "ghost": named("digits/cut-mixmo").replace(width=1, ghost=8),
    "augmented": named("digits/cut-mixmo+cutmix").replace(width=1, augmix=True, members=3, batch_size=30, repetition=3),
}
UNREADABLE = {"some": "*/[04].png", "part": "cat/*", "all": "*/*"}  # test images; "part" is what a process scores
SHORT = ["digits/cut-mixmo", "--width", "1", "--batch_size", "256", "--epochs", "2", "--device", "cpu"]
LOST = [*SHORT, "--save_seconds", "0.001", "--report", "false", "--resume"]


def double(recipe: Recipe, dataset: Dataset, trained: bool) -> Network:
    """In float64, so that what differs is not what rounding, another on each processor, makes of many steps."""

    net = fresh_network(recipe, dataset, trained).double()
    for encoder in net.encoders:
        encoder.register_forward_pre_hook(lambda _, inputs: (inputs[0].double(),))
    return net


def losses(recipe: Recipe, folder: Path, steps: int = 20) -> list[float]:
    """The loss of every step over the global batch, and the test set's first logits after them."""
    torch.set_num_threads(1)
    dataset = data.load(recipe.dataset)
    with patch("mixmo.engine.trainer.fresh_network", double):
        trainer = Trainer(recipe, dataset, Run(folder, recipe), RUNTIME, torch.device("cpu"))
    trainer.net.train()
    values = []
    for step in range(steps):
        trainer.step.meter.zero_()
        unique = torch.randperm(1437, generator=trainer.stream.at("order", step))
        draws = trainer.batches.draw(unique[: recipe.batch_size // recipe.repetition], trainer.stream.at("step", step))
        trainer.step(draws, trainer.schedule.lr(step), 0.5)
        values.append(trainer.world.mean(trainer.step.meter)[0].item())
    average_statistics(trainer.net, None, trainer.world)
    return values + trainer.scorer.predict(dataset.test).logits[0, :, 0].tolist()


def images(folder: Path, unreadable: str) -> Path:
    """Two classes of eight train and five test images; those test images that match cannot be read."""
    for part, count in (("train", 8), ("test", 5)):
        for label in ("cat", "dog"):
            (folder / part / label).mkdir(parents=True)
            for i in range(count):
                pixels = np.random.default_rng(i).integers(0, 256, (8, 8, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / part / label / f"{i}.png")
    for path in (folder / "test").glob(unreadable):
        path.write_bytes(b"not an image")
    return folder


def predictions(folder: Path) -> dict[str, list[float]]:
    """The first head's logits of the streamed test images, and their labels."""
    dataset = data.load(f"folder:{folder}@8", stream=True, workers=0)
    recipe = RECIPES["cut-mixmo"].replace(dataset=dataset.name, batch_size=8)
    trainer = Trainer(recipe, dataset, Run(folder / "none", recipe), RUNTIME, torch.device("cpu"))
    found = trainer.scorer.predict(dataset.test)
    return {"logits": found.logits[0].flatten().tolist(), "labels": found.labels.tolist()}


def normalisation(rank: int) -> list[float]:
    """Largest differences from one process with the whole batch: output, gradients, running statistics."""
    torch.manual_seed(0)
    x = torch.randn(6, 3, 4, 4, dtype=torch.float64) * 5 + 100
    weights = torch.randn_like(x)
    whole, shared = nn.BatchNorm2d(3).double(), GlobalBatchNorm(3).double()
    for layer in (whole, shared):
        nn.init.normal_(layer.weight.data, generator=torch.Generator().manual_seed(1))
    inputs = x.clone().requires_grad_()
    (whole(inputs) * weights).sum().backward()
    part = slice(3 * rank, 3 * rank + 3)
    mine = x[part].clone().requires_grad_()
    output = shared(mine)
    (output * weights[part]).sum().backward()
    dist.all_reduce(shared.weight.grad)
    pairs = [
        (output, nn.functional.batch_norm(x, None, None, whole.weight, whole.bias, True)[part]),
        (mine.grad, inputs.grad[part]),
        (shared.weight.grad, whole.weight.grad),
        (shared.running_mean, whole.running_mean),
        (shared.running_var, whole.running_var),
    ]
    return [(a - b).abs().max().item() for a, b in pairs]


def largest_gradients() -> list[dict[str, float] | None]:
    """The maxima of fp8 in each process, after three steps."""
    recipe = RECIPES["cut-mixmo"].replace(precision="fp8")
    trainer = Trainer(recipe, data.load("digits"), Run(Path("none"), recipe), RUNTIME, torch.device("cpu"))
    trainer.net.train()
    with closing(trainer.draws(0, 3)) as batches:
        for draws in batches:
            trainer.step(draws, 0.1, 0.5)
    return trainer.world.all(trainer.step.maxima.state())


def skip_a_nan(folder: Path) -> None:
    """Train 14 steps with a mask that is NaN for one sample, in step 12: one of the processes has a NaN loss."""

    def faulty(kappa_N: torch.Tensor, u_N2: torch.Tensor, h: int, w: int) -> torch.Tensor:
        return torch.where(u_N2[:, :1, None] < 0.00025, torch.nan, cut(kappa_N, u_N2, h, w))

    MASKS.add("faulty")(Mask(faulty, lambda h, w: 2, 1))
    recipe = RECIPES["cut-mixmo"].replace(mask="faulty", p=1.0, epochs=2, batch_size=128)
    train(recipe, folder, replace(RUNTIME, on_nan="skip"), until=14)


def main(folder: Path) -> int:
    world = RUNTIME.world()
    results = {name: losses(recipe, folder / "none") for name, recipe in RECIPES.items()}
    found = {"losses": results, "normalisation": normalisation(world.rank), "size": world.size}
    found["maxima"] = largest_gradients()
    found["predictions"] = {name: predictions(folder / name) for name in ("some", "part")}
    try:
        predictions(folder / "all")
    except UserError as error:
        found["error"] = str(error)
    flags = world.any(world.rank == 1, False)
    assert flags == (True, False)
    assert world.broadcast(world.rank) == 0
    rows = torch.arange(5.0)[world.part(5)]
    assert world.gather(rows, 0, 5).tolist() == [0, 1, 2, 3, 4]
    with patch("mixmo.engine.trainer.fresh_network", double):
        train(RECIPES["cut-mixmo"].replace(epochs=2), folder / "run", RUNTIME, until=30)
    train(RECIPES["ghost"].replace(average=0.5), folder / "ghost", RUNTIME, until=10)
    with suppress(UserError), patch.object(Scorer, "score", side_effect=UserError("none can be read")):
        train(RECIPES["ghost"].replace(epochs=2), folder / "unscored", RUNTIME)
    skip_a_nan(folder / "skipped")
    if world.writes:
        (folder / "found.json").write_text(json.dumps(found))
    return 0


def lose(folder: Path) -> int:
    """Process 1 dies inside an epoch, before torchrun starts both again."""
    if RUNTIME.world().rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        step, calls = Step.__call__, itertools.count()

        def die(*arguments: Any) -> None:
            step(*arguments)
            if next(calls) == 12:
                os._exit(17)

        Step.__call__ = die  # type: ignore[method-assign]
    return mixmo(["train", *LOST, "--out", str(folder / "run")])


if __name__ == "__main__":
    end(lose(Path(sys.argv[1])) if sys.argv[2:] == ["lose"] else main(Path(sys.argv[1])))
