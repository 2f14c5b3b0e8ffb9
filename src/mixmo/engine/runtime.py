"""Where and how a recipe runs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_origin, get_type_hints

import torch

from mixmo.engine.distributed import Processes, World, world
from mixmo.recipes.fields import Range, above, at_least, check_field
from mixmo.utils.errors import UserError, first_line

RECORDED = ("score_every", "compact", "on_nan", "kernels", "compile")  # options that may affect numbers


@dataclass(frozen=True)
class Runtime:
    """Where and how a recipe runs. Apart from rounding, these options do not change the result.

    There are three exceptions: `minutes` chooses the number of epochs, with `score_every` only scored epochs can be the
    best one, and `on_nan` defines what happens after a NaN.
    """

    device: str = "auto"
    """cpu, cuda, cuda:1, ...; auto: a GPU if there is one."""
    data: Path | None = None
    """Folder of the data sets (default: $MIXMO_DATA, else ./data)."""
    stream: bool | None = None
    """Read image files during training instead of keeping them decoded in memory (default: if they do not fit)."""
    workers: Annotated[int | None, at_least(0)] = None
    """Processes that decode streamed image files (default: one per core)."""
    compile: bool | None = None
    """Compile the training step with torch.compile (default: on a GPU only)."""
    kernels: Literal["auto", "cudnn"] = "auto"
    """Kernels in half precision on a GPU: auto takes the package's Triton kernels for each 3x3 convolution where they
    are faster than cuDNN (timed before the first step), for sums of batch normalisation and for overlapping stems;
    cudnn takes none of them in bf16 and fp16. fp8 always has Triton kernels."""
    minutes: Annotated[float | None, Range(0, 1e7, "(]")] = None
    """Time budget in minutes: the time of the first steps determines the number of epochs, and so the schedule."""
    score_every: Annotated[int, at_least(1)] = 1
    """Score the test set every this many epochs, and after the last one."""
    save_seconds: Annotated[float, at_least(0)] = 30.0
    """Least time between two checkpoints, after an epoch; ten times that within an epoch."""
    keep_every: Annotated[int | None, at_least(1)] = None
    """Keep the checkpoint of every this many epochs, in addition to the last one."""
    shard_mb: Annotated[float | None, Range(0, 1e9, "(]")] = None
    """Split checkpoints and weights into files of at most this many megabytes."""
    compact: bool = False
    """Write checkpoints and weights in bfloat16: half the size, but a resumed run continues from rounded weights."""
    on_nan: Literal["stop", "skip", "rollback"] = "stop"
    """After a NaN or infinite loss: stop and keep the last checkpoint; skip the updates of such steps; or roll back to
    the last checkpoint and continue with other random draws, at most 3 times."""
    logger: str | None = None
    """Also log every scored epoch to csv, tensorboard, or a class with Lightning's logger interface
    (my.module.Logger); separate several with commas."""
    wait_seconds: Annotated[float, above(0)] = 1800.0
    """With several processes: how long to wait for a slow or stopped one before the training ends."""
    quiet: bool = False
    """Print no progress."""

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(Runtime, include_extras=True).items():
            if get_origin(hint) in (Annotated, Literal):
                check_field(name, getattr(self, name), hint)

    def compiled(self, device: torch.device) -> bool:
        """Return whether to compile the step."""
        return device.type == "cuda" if self.compile is None else self.compile

    def options(self, device: torch.device) -> dict[str, Any]:
        """Return the options that affect numbers, even if only by rounding: a rerun needs them to be identical."""
        return {name: getattr(self, name) for name in RECORDED} | {"compile": self.compiled(device)}

    def resolve(self) -> torch.device:
        """Return the device of this process."""
        here = self.world()
        if isinstance(here, Processes):
            return here.device
        name = self.device if self.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
        try:
            device = torch.device(name)
            torch.empty(0, device=device)
            torch.Generator(device)  # which "meta" does not have
        except (RuntimeError, AssertionError, ImportError) as error:  # the module of some devices is another package
            raise UserError(f"device '{self.device}' cannot be used here ({first_line(error)}); try cpu") from error
        return device

    def world(self) -> World:
        """Return the processes that train together."""
        on_gpu = torch.cuda.is_available() if self.device == "auto" else self.device.startswith("cuda")
        return world("cuda" if on_gpu else "cpu", self.wait_seconds)
