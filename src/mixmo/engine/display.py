"""How far a training is: rate, time left, last scores. A bar on a terminal; elsewhere a line an epoch and a minute."""

import time
from types import TracebackType
from typing import Any

from mixmo.engine.schedule import Schedule
from mixmo.recipes.schema import Recipe
from mixmo.utils.progress import Work, clock


class Progress(Work):
    """Told of every step and epoch."""

    def __init__(self, recipe: Recipe, schedule: Schedule, done: int) -> None:
        super().__init__("training", schedule.steps, done)
        self.recipe, self.schedule = recipe, schedule
        self.scores = ""  # of the last epoch that was scored
        self.paced: float | None = None  # since when the pace is measured

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        if self.board is not None and self.board.live:  # whose bar has gone
            self.board.say(self.line())

    def step(self, step: int) -> None:
        self.done = step
        if self.paced is None:  # the first step compiles, for a minute or two: no measure of the others
            self.paced, self.before = time.monotonic(), step

    def epoch(self, line: dict[str, Any]) -> None:
        test, recipe = line["test"]["ensemble"], self.recipe
        self.scores = f"  top1 {100 * test['top1']:.2f}  nll {test['nll']:.3f}"
        if self.board is not None and not self.board.live:
            self.board.say(
                f"epoch {line['epoch']}/{recipe.epochs}  loss {line['train']['loss']:.4f}  "
                f"top1 {100 * test['top1']:.2f}  nll {test['nll']:.4f}  nllc {test['nllc']:.4f}  {self.left()}".rstrip()
            )

    def what(self) -> str:
        """The epoch that the last step, counted from 1, is of; before the first, the one to come."""
        begun = self.done if self.paced is None else self.done - 1
        last = max(0, min(self.schedule.steps - 1, int(begun)))
        return f"epoch {self.schedule.epoch(last) + 1}/{self.recipe.epochs}{self.scores}"

    def left(self) -> str:
        """Images a second and time left, evaluation included; nothing before the second step."""
        if self.paced is None or self.done <= self.before:
            return ""
        rate = (self.done - self.before) / max(time.monotonic() - self.paced, 1e-9)
        return f"{pace(rate * self.recipe.batch_size)}  {clock((self.schedule.steps - self.done) / rate)} left"

    def tail(self) -> str:
        return f"{self.done:.0f}/{self.schedule.steps} steps  {self.left()}".rstrip()

    def line(self) -> str:
        return f"{self.what()}  step {self.done:.0f}/{self.schedule.steps}  {self.left()}".rstrip()


def pace(rate: float) -> str:
    """Images a second; a large network on a CPU takes more than a second for one.

    >>> pace(10840.3), pace(0.273)
    ('10,840 images/s', '0.27 images/s')
    """
    return f"{rate:,.0f} images/s" if rate >= 10 else f"{rate:.2g} images/s"
