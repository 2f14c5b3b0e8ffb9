"""Progress of a training: a header, a line per scored epoch, and a bar (without a terminal: a line per minute)."""

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import torch

from mixmo.data.decode import some
from mixmo.data.types import Dataset
from mixmo.engine.schedule import Schedule
from mixmo.models import Ensemble, parameters
from mixmo.recipes.schema import Recipe
from mixmo.utils.errors import quoted
from mixmo.utils.progress import Work, clock
from mixmo.utils.text import printable

LEAST = 5  # batches that show every image once
ENOUGH = 800  # steps of fine-tuning, divided by b: 60 epochs of 900 images in batches of 64


def header(
    schedule: Schedule, dataset: Dataset, net: Ensemble, device: torch.device, out: Path, step: int
) -> list[str]:
    """Describe a training in a few lines: network, device, data, steps, where it writes."""
    recipe = schedule.recipe
    threads, members = _count(torch.get_num_threads(), "thread"), _count(recipe.members, "member")
    hardware = torch.cuda.get_device_name(device) if device.type == "cuda" else threads
    samples, test = len(dataset.train.labels), len(dataset.test.labels)
    held = recipe.held_out(samples)
    images = f"{samples - held:,} training, {f'{held:,} validation, ' if held else ''}{test:,} test images"
    height, width = recipe.seen(dataset.size)[1:]
    steps = f"{_count(recipe.epochs, 'epoch')} of {_count(schedule.steps_per_epoch, 'step')}"
    return [
        f"network  {recipe.architecture}, {parameters(net):,} parameters, {members}",
        *_start(recipe, dataset),
        f"device   {device} ({hardware}), {recipe.precision}",
        f"data     {recipe.dataset}: {images} of {height}x{width}, {len(dataset.classes)} classes",
        f"steps    {steps} with {recipe.batch_size} images" + f"; {step:,} steps are done" * (step > 0),
        *(_large_batch(schedule, samples - held) or _few(schedule)),
        *_long_warmup(schedule),
        *_untested(dataset),
        f"writes   {out}",
    ]


def _start(recipe: Recipe, dataset: Dataset) -> list[str]:
    """Describe the initial weights; nothing for the random ones of a network family."""
    mean, std = (" ".join(f"{value:.3g}" for value in values) for values in (dataset.mean, dataset.std))
    normalised = f", images normalised with mean {mean}, std {std}"
    if recipe.start or recipe.weights:
        return [f"start    {recipe.start or recipe.weights}{normalised}"]
    if ":" in recipe.model:
        return [f"start    weights that {recipe.model} returns{normalised}"]
    if recipe.is_backbone:
        return [f"start    published weights{normalised}" if recipe.pretrained else "start    random weights"]
    return []


def _large_batch(schedule: Schedule, samples: int) -> list[str]:
    """Recommend a smaller batch size where an epoch has few steps."""
    recipe = schedule.recipe
    unique = recipe.batch_size // recipe.repetition
    smaller = recipe.repetition * 2 ** int(math.log2(max(1, samples // LEAST)))
    if samples // unique >= LEAST or smaller >= recipe.batch_size:
        return []
    return [f"hint     few steps per epoch for {samples} images: try --batch-size {smaller}"]


def _untested(dataset: Dataset) -> list[str]:
    """Name classes without a test image."""
    counts = dataset.test.labels.cpu().bincount(minlength=len(dataset.classes)).tolist()
    missing = [name for name, count in zip(dataset.classes, counts, strict=True) if not count]
    named = printable(some([quoted(name) for name in missing]))
    return [f"hint     no test image of class {named}: scores do not cover it"] if missing else []


def _few(schedule: Schedule) -> list[str]:
    """Recommend more epochs where the fine-tuning of a backbone has few steps (docs/results/fine-tuning.md)."""
    recipe = schedule.recipe
    each = schedule.steps_per_epoch / recipe.repetition
    if not recipe.is_backbone or each * recipe.epochs >= ENOUGH:
        return []
    epochs = 10 * math.ceil(ENOUGH / each / 10)
    what = "random weights" if _random(recipe) else "fine-tuning"
    return [f"hint     few steps for {what}: --epochs {epochs} takes longer and may score higher"]


def _long_warmup(schedule: Schedule) -> list[str]:
    """Recommend a shorter warm-up where it is as long as the training, or longer."""
    recipe = schedule.recipe
    if not schedule.warmup or schedule.warmup < schedule.steps:
        return []
    whole = f"--warmup {recipe.warmup:g} takes the whole training, and the learning rate never falls"
    return [f"hint     {whole}: try --warmup {recipe.epochs / 10:g}"]


def _random(recipe: Recipe) -> bool:
    """Return whether the training starts from random weights."""
    return not (recipe.start or recipe.weights or recipe.pretrained or ":" in recipe.model)


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" + "s" * (number > 1)


class Progress(Work):
    """The progress of a training, updated after every step and every scored epoch."""

    def __init__(self, schedule: Schedule, done: int, header: Sequence[str] = ()) -> None:
        super().__init__("training", schedule.steps, done)
        self.schedule, self.recipe, self.header = schedule, schedule.recipe, header
        self.paced: float | None = None  # since when the pace is measured

    def __enter__(self) -> Self:
        super().__enter__()
        if self.board is not None:
            for line in self.header:
                self.board.say(line)
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        if self.board is not None and self.board.live and self.done < self.schedule.steps:
            self.board.say(f"{self.what()}  step {self.done:.0f}/{self.schedule.steps}")

    def step(self, step: int) -> None:
        self.done = step
        if self.paced is None:  # the first step compiles, for a minute or two, and is not counted
            self.paced, self.before = time.monotonic(), step

    def epoch(self, record: dict[str, Any]) -> None:
        """Print the line of a scored epoch, which stays; with the time left where there is no bar."""
        if self.board is not None:
            test, skipped = record["test"]["ensemble"], record.get("skipped", 0)
            self.board.say(
                f"epoch {record['epoch']}/{self.recipe.epochs}  loss {record['train']['loss']:.4f}  "
                f"Top1 {100 * test['top1']:.2f}  NLL {test['nll']:.4f}  lr {record['lr']:.3g}  "
                f"{_count(skipped, 'step') + ' skipped  ' if skipped else ''}"
                f"time {clock(record['seconds'])}  {'' if self.board.live else self.left()}".rstrip()
            )

    def what(self) -> str:
        """Return the epoch of the last step, or before the first step the epoch to come."""
        begun = self.done if self.paced is None else self.done - 1
        last = max(0, min(self.schedule.steps - 1, int(begun)))
        return f"epoch {self.schedule.epoch(last) + 1}/{self.recipe.epochs}"

    def left(self) -> str:
        """Return images/s and the time left, evaluation included; nothing before the second step."""
        if self.paced is None or self.done <= self.before:
            return ""
        rate = (self.done - self.before) / max(time.monotonic() - self.paced, 1e-9)
        return f"{pace(rate * self.recipe.batch_size)}  {clock((self.schedule.steps - self.done) / rate)} left"

    def tail(self) -> str:
        return f"{100 * self.done / self.schedule.steps:.0f} %  {self.left()}".rstrip()

    def line(self) -> str:
        return f"{self.what()}  step {self.done:.0f}/{self.schedule.steps}  {self.left()}".rstrip()


def pace(rate: float) -> str:
    """Format images/s; a large network on a CPU takes more than a second per image.

    >>> pace(10840.3), pace(0.273)
    ('10,840 images/s', '0.27 images/s')
    """
    return f"{rate:,.0f} images/s" if rate >= 10 else f"{rate:.2g} images/s"
