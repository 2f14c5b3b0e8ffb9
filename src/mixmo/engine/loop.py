"""Training from a recipe to a finished run directory; stopped at any time, it resumes to the same result."""

import json
import math
import sys
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mixmo import data
from mixmo.engine.batch import Batches
from mixmo.engine.checkpoint import Checkpoints, State
from mixmo.engine.progress import Progress
from mixmo.engine.schedule import Schedule
from mixmo.engine.signals import Flag, Stopped, stop_signals
from mixmo.engine.source import each_step, plan
from mixmo.engine.step import Step
from mixmo.errors import UserError
from mixmo.masks import MASKS
from mixmo.metrics.report import Report, evaluate
from mixmo.mixing import grid
from mixmo.models import Network, multiply_adds, parameters, stage_shapes
from mixmo.predict import predict_logits
from mixmo.random import Stream
from mixmo.recipes.schema import Recipe
from mixmo.runs import Run, environment, plain
from mixmo.saliency import SALIENCY
from mixmo.types import Dataset, Split


@dataclass(frozen=True)
class Runtime:
    """Where and how a recipe runs; nothing here changes what it computes, beyond rounding."""

    device: str = "auto"
    """cpu, cuda, cuda:1, ...; auto takes a GPU where there is one."""
    data: Path | None = None
    """Folder of the data sets; by default the environment variable MIXMO_DATA, else ./data."""
    stream: bool | None = None
    """Read image files while training rather than hold them decoded in memory; by default if they do not fit there."""
    workers: int | None = None
    """Processes that decode image files as they are streamed; by default one a core."""
    compile: bool | None = None
    """torch.compile the step; by default on a GPU only, where it pays."""
    save_seconds: float = 30.0
    """At least this long between two checkpoints; ten times that inside a long epoch. One is also taken at the end and
    when stopped."""
    quiet: bool = False
    """No progress on the terminal."""

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 0:
            raise UserError(f"workers = {self.workers}; it cannot be negative")

    def resolve(self) -> torch.device:
        name = self.device
        if name == "auto":
            name = "cuda" if torch.cuda.is_available() else "cpu"
        try:
            device = torch.device(name)
            torch.empty(0, device=device)
        except (RuntimeError, AssertionError) as error:
            raise UserError(
                f"device '{self.device}' cannot be used here ({str(error).splitlines()[0]}); try cpu"
            ) from error
        return device


def train(
    recipe: Recipe, out: Path, runtime: Runtime | None = None, *, resume: bool = False, until: int | None = None
) -> Run:
    """Train a recipe into the folder `out`, or up to step `until`. With `resume`, continue what is there.

    Several networks are runs of their own in folders 0, 1, ... of `out`, with seeds that follow each other.
    """
    runtime = runtime or Runtime()
    device = runtime.resolve()
    dataset = data.load(recipe.dataset, runtime.data, device, runtime.stream, runtime.workers)
    check_fit(recipe, dataset)
    run = open_or_create(recipe, out, resume)
    if run.finished:
        return run
    if recipe.networks == 1:
        Trainer(recipe, dataset, run, runtime, device).run(until)
        return run
    for i, (path, one) in enumerate(zip(run.networks(), singles(recipe), strict=True)):
        if not runtime.quiet:
            print(f"network {i + 1} of {recipe.networks}", file=sys.stderr)
        train(one, path, runtime, resume=True, until=until)
    return run


def singles(recipe: Recipe) -> list[Recipe]:
    """The recipes of the networks of an ensemble."""
    return [recipe.replace(networks=1, seed=recipe.seed + i) for i in range(recipe.networks)]


def open_or_create(recipe: Recipe, out: Path, resume: bool) -> Run:
    """The run to write to. One of another recipe is refused."""
    if not (resume and (out / "recipe.yaml").exists()):
        return Run.create(out, recipe)
    run = Run.open(out)
    ours, theirs = plain(recipe), plain(run.recipe)
    different = [f"{key} {theirs[key]} -> {ours[key]}" for key in ours if ours[key] != theirs[key]]
    if different:
        raise UserError(
            f"{out} is a run of another recipe ({', '.join(different)}); resume with its own, or give another --out"
        )
    return run


def check_fit(recipe: Recipe, dataset: Dataset) -> None:
    """Whatever in a recipe cannot work on this data set, said before training starts."""
    samples, height, width = dataset.train.images.shape[:3]
    if recipe.validation >= samples:
        raise UserError(f"validation = {recipe.validation}, but {dataset.name} has only {samples} training images")
    if recipe.size is not None and recipe.size > min(height, width):
        raise UserError(
            f"size = {recipe.size}, but the images of {dataset.name} are {height}x{width}; take a smaller one"
        )
    unique = recipe.batch_size // recipe.repetition
    if samples - recipe.validation < unique:
        raise UserError(
            f"batch_size = {recipe.batch_size} needs {unique} images a step; "
            f"{dataset.name} has {samples - recipe.validation}: take a smaller batch_size"
        )
    _, height, width = recipe.seen((1, height, width))
    if recipe.saliency != "none" and not (height == width and SALIENCY[recipe.saliency].fitting(width)):
        grids = " or ".join(map(str, SALIENCY[recipe.saliency].grids))
        raise UserError(
            f"saliency = {recipe.saliency} cuts square images into {grids} blocks a side; "
            f"{dataset.name} has {height}x{width}: resize its images or take another method"
        )
    if recipe.mask in MASKS and recipe.members > 1:
        h, w = grid(*recipe.seen((1, height, width))[1:], recipe.stride)
        if min(h, w) < MASKS[recipe.mask].minimum:
            raise UserError(
                f"mask '{recipe.mask}' needs features of at least {MASKS[recipe.mask].minimum} positions a side; "
                f"{dataset.name} gives {h}x{w}: take another mask"
            )


def hold_out(split: Split, count: int, seed: int) -> tuple[Split, Split | None]:
    """Training part and validation part, by a seeded shuffle that is the same on every device."""
    if count == 0:
        return split, None
    order = torch.randperm(len(split.labels), generator=Stream(seed, torch.device("cpu")).at("validation"))
    order = order.to(split.labels.device)
    rest, held = order[count:].sort().values, order[:count].sort().values
    return Split(split.images[rest], split.labels[rest]), Split(split.images[held], split.labels[held])


class Trainer:
    """One training: network, optimiser, batches and where it stands."""

    def __init__(self, recipe: Recipe, dataset: Dataset, run: Run, runtime: Runtime, device: torch.device) -> None:
        self.recipe, self.dataset, self.run_folder, self.runtime, self.device = recipe, dataset, run, runtime, device
        self.train_split, self.held_out = hold_out(dataset.train, recipe.validation, recipe.seed)
        self.schedule = Schedule(recipe, len(self.train_split.labels))
        self.stream = Stream(recipe.seed, device)
        self.net = fresh_network(recipe, dataset).to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimizer = torch.optim.SGD(
            self.net.parameters(),
            lr=recipe.rate,
            momentum=recipe.momentum,
            nesterov=recipe.momentum > 0,
            weight_decay=recipe.weight_decay,
            fused=True,
        )
        shapes = stage_shapes(self.net, recipe.seen(image_size(dataset))) if recipe.hidden != "none" else ()
        self.batches = Batches(recipe, dataset, self.train_split, shapes)
        self.checkpoints = Checkpoints(run.path / "checkpoints")
        self.state = self.checkpoints.load(self.net, self.optimizer) or State()
        self.best: dict[str, Tensor] | None = self.checkpoints.best(self.state)
        on_gpu = device.type == "cuda"
        compiled = on_gpu if runtime.compile is None else runtime.compile
        self.step = Step(
            self.net,
            self.optimizer,
            self.batches,
            precision=recipe.precision,
            compiled=compiled,
            graphed=on_gpu and compiled,
        )
        self.step.meter.copy_(torch.tensor(self.state.meter, dtype=torch.float64))

    def run(self, until: int | None = None) -> None:
        """Train to the end, or to step `until`; then or when a signal asks for it, save and stop."""
        run, state = self.run_folder, self.state
        run.write("environment.json", json.dumps(environment(self.device), indent=2))
        run.write("dataset.json", json.dumps(describe(self.dataset, self.recipe), indent=2))
        lines = [json.dumps(line) + "\n" for line in run.metrics()[: state.epochs_logged]]
        run.write("metrics.jsonl", "".join(lines))
        last = self.schedule.steps if until is None else min(until, self.schedule.steps)
        saved = time.monotonic()
        self.net.train()
        with (
            stop_signals() as stopped,
            Progress(self.recipe, self.schedule, state.step, self.runtime.quiet) as progress,
        ):
            while state.step < last and not stopped():
                try:
                    self.train_epoch(last, stopped, progress)
                except UserError:  # the images cannot be read any more: what was learnt stays
                    self.save()
                    raise
                if not math.isfinite(state.meter[0]):
                    raise UserError(
                        f"the loss is {state.meter[0]} by step {state.step}: training diverged; nothing more was saved "
                        f"to {run.path}: take a lower lr (it is {self.recipe.lr}) or a longer warmup, and another --out"
                    )
                if (
                    state.step % self.schedule.steps_per_epoch == 0
                    and state.step // self.schedule.steps_per_epoch > state.epochs_logged
                ):
                    progress.epoch(self.end_epoch())
                if time.monotonic() - saved > self.runtime.save_seconds:
                    self.save()
                    saved = time.monotonic()
        self.save()
        if state.step == self.schedule.steps:
            self.finish()
        elif stopped():
            raise Stopped(f"stopped after step {state.step} of {self.schedule.steps}; continue with --resume")

    def train_epoch(self, last: int, stopped: "Flag", progress: Progress) -> None:
        """The rest of the epoch under way, or of it what fits between two checkpoints."""
        state, schedule = self.state, self.schedule
        epoch, began = schedule.epoch(state.step), time.monotonic()
        planned = plan(self.recipe, len(self.train_split.labels), epoch)
        start = epoch * schedule.steps_per_epoch
        end = min(last, start + schedule.steps_per_epoch)
        chance = self.batches.mixer.chance(schedule.progress(state.step))
        try:
            with closing(each_step(self.recipe, self.train_split, planned, state.step - start, end - start)) as steps:
                for samples in steps:
                    draws = self.batches.draw(
                        samples.unique, self.stream.at("step", state.step), samples.partners, samples.pool
                    )
                    self.step(draws, schedule.lr(state.step), chance)
                    state.step += 1
                    progress.step(state.step)
                    if stopped() or time.monotonic() - began > 10 * self.runtime.save_seconds:
                        break
        finally:
            state.meter = tuple(self.step.meter.tolist())  # the one wait for the device
            state.seconds += time.monotonic() - began

    def end_epoch(self) -> dict[str, Any]:
        """Score the network, remember it if it is the best so far, log one line."""
        state, steps = self.state, self.schedule.steps_per_epoch
        began = time.monotonic()
        report = self.score(self.dataset.test)
        held = self.score(self.held_out) if self.held_out else None
        top1 = (held or report).ensemble.top1
        if top1 > state.best_top1:
            state.best_top1, state.best_step = top1, state.step
            self.best = {name: tensor.clone() for name, tensor in self.net.state_dict().items()}
        line = {
            "epoch": state.step // steps,
            "step": state.step,
            "lr": self.schedule.lr(state.step - 1),
            "p": self.batches.mixer.chance(self.schedule.progress(state.step - 1)),
            "train": {"loss": state.meter[0] / steps, "top1": state.meter[1] / steps},
            "test": report.to_dict(),
            **({"validation": held.to_dict()} if held else {}),
            "seconds": round(state.seconds, 3),
            "evaluation_seconds": round(time.monotonic() - began, 3),
        }
        with (self.run_folder.path / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
        state.epochs_logged, state.meter = state.step // steps, (0.0, 0.0)
        self.step.meter.zero_()
        return line

    def score(self, split: Split) -> Report:
        return evaluate(self.logits(split, self.recipe.precision), split.labels)

    def logits(self, split: Split, precision: str = "fp32") -> Tensor:
        return predict_logits(self.net, self.dataset, split, precision, size=self.recipe.size)

    def save(self) -> None:
        self.checkpoints.save(self.state, self.net, self.optimizer, self.best)

    def finish(self) -> None:
        """Weights, logits in float32 and scores of the last and of the best epoch."""
        run, weights = self.run_folder, self.net.state_dict()
        scores: dict[str, Any] = {
            "parameters": parameters(self.net),
            "multiply_adds": multiply_adds(self.net, self.recipe.seen(image_size(self.dataset))),
            "best_epoch": (self.state.best_step or 0) // self.schedule.steps_per_epoch,
            "best_by": "validation" if self.held_out else "test",
            "seconds": round(self.state.seconds, 3),
        }
        last = {name: tensor.clone() for name, tensor in weights.items()}
        for which, chosen in (("best", self.best or last), ("last", last)):
            self.net.load_state_dict(chosen)
            logits = self.logits(self.dataset.test)
            tensors = {"logits": logits, "labels": self.dataset.test.labels}
            if self.held_out:
                tensors["validation_logits"] = self.logits(self.held_out)
                tensors["validation_labels"] = self.held_out.labels
            run.write_tensors(f"logits-{which}.safetensors", tensors)
            run.write_tensors(f"{which}.safetensors", chosen)
            scores[which] = evaluate(logits.cpu(), self.dataset.test.labels.cpu()).to_dict()
        run.write("scores.json", json.dumps(scores, indent=2))


def fresh_network(recipe: Recipe, dataset: Dataset) -> Network:
    """The recipe's network with its initial weights, the same on every device."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(Stream(recipe.seed, torch.device("cpu")).at("weights").initial_seed())
        return recipe.network(len(dataset.classes), dataset.train.images.shape[3])


def describe(dataset: Dataset, recipe: Recipe) -> dict[str, Any]:
    """What of a data set travels with the weights; the size is that of what the network sees."""
    return {
        "name": dataset.name,
        "classes": list(dataset.classes),
        "mean": list(dataset.mean),
        "std": list(dataset.std),
        "size": list(recipe.seen(image_size(dataset))),
    }


def image_size(dataset: Dataset) -> tuple[int, int, int]:
    """(C, H, W)"""
    height, width, channels = dataset.train.images.shape[1:]
    return channels, height, width
