"""Where and how a recipe runs."""

import math
from dataclasses import dataclass
from pathlib import Path

import torch

from mixmo.engine.distributed import Processes, World, world
from mixmo.utils.errors import UserError, first_line

YEAR = 366 * 24 * 60  # in minutes


@dataclass(frozen=True)
class Runtime:
    """Where and how a recipe runs; nothing here changes what it computes, beyond rounding.

    But `minutes` chooses the epochs, and with `score_every` only the scored ones can be the best.
    """

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
    minutes: float | None = None
    """Wall-clock budget: the epochs, and with them warm-up, decay and p, are fitted to what the first steps take."""
    score_every: int = 1
    """Epochs between two scorings of the test set; the last epoch is always scored."""
    save_seconds: float = 30.0
    """At least this long between two checkpoints; ten times that inside a long epoch. One is also taken at the end and
    when stopped."""
    keep_every: int | None = None
    """Keep the checkpoints of every so many epochs, beside the last one."""
    shard_mb: float | None = None
    """Checkpoints and weights in files of at most so many megabytes."""
    compact: bool = False
    """Checkpoints and final weights in bfloat16: half the size; a resumed run then continues from rounded weights."""
    logger: str | None = None
    """Log every scored epoch to csv, tensorboard, or a class with Lightning's logger interface (my.module.Logger) too;
    several with commas between them."""
    quiet: bool = False
    """No progress on standard error."""

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 0:
            raise UserError(f"workers = {self.workers}; it cannot be negative")
        for name in ("minutes", "score_every", "keep_every", "shard_mb"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise UserError(f"{name} = {value}; it must be positive and finite")
        if (self.minutes or 0) > YEAR:
            raise UserError(f"minutes = {self.minutes}; take at most {YEAR}, a year: the schedule would never end")
        if not self.save_seconds >= 0:
            raise UserError(f"save_seconds = {self.save_seconds}; it cannot be negative")

    def resolve(self) -> torch.device:
        """The device of this process."""
        name = self.device
        if name == "auto":
            name = "cuda" if torch.cuda.is_available() else "cpu"
        here = self.world()
        if isinstance(here, Processes):
            return here.device
        try:
            device = torch.device(name)
            torch.empty(0, device=device)
            torch.Generator(device)  # which "meta" has not
        except (RuntimeError, AssertionError) as error:
            raise UserError(f"device '{self.device}' cannot be used here ({first_line(error)}); try cpu") from error
        return device

    def world(self) -> World:
        """The processes that train together."""
        on_gpu = torch.cuda.is_available() if self.device == "auto" else self.device.startswith("cuda")
        return world("cuda" if on_gpu else "cpu")
