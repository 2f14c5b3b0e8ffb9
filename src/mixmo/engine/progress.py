"""How far a training is: rate, time left, last scores. A bar on a terminal; elsewhere a line an epoch and a minute."""

import time
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as Bar

from mixmo.engine.schedule import Schedule
from mixmo.recipes.schema import Recipe

EVERY = 60.0  # seconds between two lines inside an epoch where there is no terminal


class Lasting(Console):
    """Standard error, as long as somebody listens. A training does not end because its terminal has."""

    def on_broken_pipe(self) -> None:
        self.quiet = True

    def _check_buffer(self) -> None:
        try:
            super()._check_buffer()
        except OSError:
            self.quiet = True


class Progress:
    """Told of every step and epoch; writes to standard error, so that standard output stays for results."""

    def __init__(self, recipe: Recipe, schedule: Schedule, done: int, quiet: bool) -> None:
        self.recipe, self.schedule, self.done, self.quiet = recipe, schedule, done, quiet
        self.console = Lasting(stderr=True)
        self.live = self.console.is_terminal and not quiet
        self.bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total} steps  {task.fields[speed]}"),
            console=self.console,
            disable=not self.live,
        )
        self.task: TaskID | None = None
        self.scores = ""  # of the last epoch that was scored
        self.at, self.shown = done, time.monotonic()
        self.began: float | None = None

    def __enter__(self) -> "Progress":
        self.bar.start()
        first = self.text(self.done + 1)
        self.task = self.bar.add_task(first, total=self.schedule.steps, completed=self.done, speed="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.task is not None:  # the last steps came too soon after the one shown
            self.bar.update(self.task, completed=self.at, description=self.text(self.at), speed=self.speed(self.at))
        self.bar.stop()

    def step(self, step: int) -> None:
        self.at, now = step, time.monotonic()
        if self.began is None:  # the first step compiles, for a minute or two: no measure of the others
            self.began, self.done = now, step
        if self.quiet or now - self.shown < (0.2 if self.live else EVERY):
            return
        self.shown = now
        if self.live and self.task is not None:
            self.bar.update(self.task, completed=step, description=self.text(step), speed=self.speed(step))
        else:
            self.say(f"{self.text(step)}  step {step}/{self.schedule.steps}  {self.speed(step)}".rstrip())

    def epoch(self, line: dict[str, Any]) -> None:
        test, recipe = line["test"]["ensemble"], self.recipe
        self.scores = f"  top1 {100 * test['top1']:.2f}  nll {test['nll']:.3f}"
        if not self.live and not self.quiet:
            self.say(
                f"epoch {line['epoch']}/{recipe.epochs}  loss {line['train']['loss']:.4f}  "
                f"top1 {100 * test['top1']:.2f}  nll {test['nll']:.4f}  nllc {test['nllc']:.4f}  "
                f"{self.speed(line['step'])}".rstrip()
            )

    def text(self, step: int) -> str:
        """The epoch that this step, counted from 1, is of."""
        return f"epoch {self.schedule.epoch(max(0, step - 1)) + 1}/{self.recipe.epochs}{self.scores}"

    def say(self, text: str) -> None:
        self.console.print(text, highlight=False, soft_wrap=True)

    def speed(self, step: int) -> str:
        """Images a second and time left, evaluation included; nothing before the second step."""
        if self.began is None or step <= self.done:
            return ""
        rate = (step - self.done) / max(time.monotonic() - self.began, 1e-9)
        return f"{pace(rate * self.recipe.batch_size)}  {clock((self.schedule.steps - step) / rate)} left"


def pace(rate: float) -> str:
    """Images a second; a large network on a CPU takes more than a second for one.

    >>> pace(10840.3), pace(0.273)
    ('10,840 images/s', '0.27 images/s')
    """
    return f"{rate:,.0f} images/s" if rate >= 10 else f"{rate:.2g} images/s"


def clock(seconds: float) -> str:
    """
    >>> clock(59.6), clock(3700)
    ('1:00', '1:01:40')
    """
    minutes, s = divmod(round(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02d}:{s:02d}" if hours else f"{m}:{s:02d}"
