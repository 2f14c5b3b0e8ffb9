"""Checkpoints: one folder each, complete or not there at all, written in the background while training continues.

`checkpoints/00001562/` holds weights.safetensors, optimizer.safetensors, state.json and their checksums after 1,562
steps. It is written under a temporary name and renamed; only then the previous one is removed. Checkpoints to keep hold
a file `kept`. The best weights lie beside them as `best-<step>.safetensors`; state.json names the step.
"""

import json
import os
import shutil
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

from mixmo.runs.contents import is_state
from mixmo.storage import checksums
from mixmo.storage.files import atomic_write, leftovers, write_errors
from mixmo.storage.plain_json import parse_json
from mixmo.storage.weights import UNFINISHED, load_tensors, load_weights, save_tensors, to_bfloat16
from mixmo.utils.errors import UserError, first_line

T = TypeVar("T")
MOMENTUM = "momentum_buffer"


@dataclass
class State:
    """Progress of a training run, apart from weights and momentum."""

    step: int = 0  # steps done
    epochs_logged: int = 0
    meter: tuple[float, ...] = (0.0,) * 4  # sums over the steps of the current epoch
    best_step: int | None = None
    best_top1: float = -1.0
    best_nll: float = 0.0  # of the same epoch; in checkpoints of earlier versions 0, which no tie beats
    seconds: float = 0.0  # training time so far
    rollbacks: int = 0  # returns to an earlier checkpoint, after each of which the draws are others
    loss_scale: tuple[float, int] | None = None  # of fp16, and steps since it last grew
    maxima: dict[str, float] | None = None  # of fp8: the largest gradients of the last step, by layer
    teacher: str | None = None  # checksum of the weights of the teacher
    logged: dict[int, str] | None = None  # checksums of the lines in metrics.jsonl; None from earlier versions


class Snapshot:
    """Copies of tensors that a thread may read while training changes the originals."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.tensors = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        on_gpu = any(tensor.is_cuda for tensor in self.tensors.values())
        self.ready = torch.cuda.current_stream().record_event() if on_gpu else None

    def fetch(self) -> dict[str, Tensor]:
        """Return the copies in host memory, on a separate stream that waits for them and not for later steps."""
        if self.ready is None:
            return self.tensors
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda.current_stream().wait_event(self.ready)
            return {name: tensor.cpu() for name, tensor in self.tensors.items()}


class Checkpoints:
    """The checkpoints of one run: the last one, and those to keep."""

    def __init__(
        self,
        folder: Path,
        *,
        recipe: Path | None = None,  # recipe.yaml; a checkpoint of another recipe raises an error
        every: int | None = None,  # keep those of each multiple of so many steps, also if a later training keeps none
        shard_mb: float | None = None,
        compact: bool = False,  # weights and momentum in bfloat16: resuming is not bit-identical
    ) -> None:
        self.folder, self.recipe = folder, recipe
        self.every, self.shard_mb, self.compact = every, shard_mb, compact
        self.writer = ThreadPoolExecutor(1, "checkpoint")
        self.writing: Future[None] | None = None
        self.best_stored: int | None = None  # step of the best weights that this object has written or read

    def all(self) -> list[Path]:
        return [path for path in self.folder.glob("[0-9]*") if path.name.isdecimal() and path.is_dir()]

    def latest(self) -> Path | None:
        """Return the newest complete checkpoint, or None."""
        there = self.all()
        complete = [path for path in there if (path / "state.json").is_file()]
        if complete != there and self.all() != there:  # a training process has just replaced one of them
            return self.latest()
        return max(complete, default=None, key=lambda path: int(path.name))

    def save(
        self,
        state: State,
        net: nn.Module,
        optimizer: torch.optim.Optimizer,
        best: dict[str, Tensor] | None,
        average: nn.Module | None = None,
    ) -> None:
        """Write a checkpoint in the background. The next `save` or `wait` raises its errors."""
        self.wait()
        parts = {"weights": Snapshot(net.state_dict()), "optimizer": Snapshot(moments(net, optimizer))}
        if average is not None:
            parts["average"] = Snapshot(average.state_dict())
        # The best weights are copies already, and replaced rather than changed.
        self.writing = self.writer.submit(self._write, replace(state), parts, best)

    def wait(self) -> None:
        writing, self.writing = self.writing, None
        if writing is not None:
            writing.result()

    def _write(self, state: State, parts: dict[str, Snapshot], best: dict[str, Tensor] | None) -> None:
        final = self.folder / f"{state.step:08d}"
        temporary = self.folder / f".{final.name}.tmp"
        try:
            with write_errors(final):
                self.folder.mkdir(exist_ok=True)  # not its parents: the run may have been removed
                if best is not None and state.best_step not in (None, self.best_stored):
                    save_tensors(self._packed(best), self.best_path(state.best_step), self.shard_mb)
                    self.best_stored = state.best_step
                # An existing checkpoint of this step is equal; to replace it would leave none for a moment.
                new = not (final / "state.json").is_file()
                if new:
                    self._write_folder(temporary, state, parts)
                if self.every and state.step % self.every == 0:
                    ((temporary if new else final) / "kept").touch()
                if new:
                    shutil.rmtree(final, ignore_errors=True)
                    temporary.rename(final)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        self._prune(final)

    def _write_folder(self, folder: Path, state: State, parts: dict[str, Snapshot]) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for name, snapshot in parts.items():
            tensors = snapshot.fetch()
            if not all(tensor.isfinite().all() for tensor in tensors.values()):  # which the last loss may not show
                damage = f"weights or momentum are NaN or infinite after step {state.step}: training diverged"
                raise UserError(f"{damage}; take a lower lr or a longer warmup, and another --out")
            save_tensors(self._packed(tensors), folder / f"{name}.safetensors", self.shard_mb)
        with atomic_write(folder / "state.json") as file:
            file.write_text(json.dumps(asdict(state)))
        files = sorted(folder.iterdir())
        if state.best_step is not None:  # one file, or shards and their index
            files += sorted(self.folder.glob(f"{self.best_path(state.best_step).stem}*.safetensors*"))
        if self.recipe is not None:
            files.append(self.recipe)
        with atomic_write(folder / checksums.NAME) as file:
            file.write_text(checksums.format_sums({Path(os.path.relpath(p, folder)).as_posix(): p for p in files}))

    def _packed(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return to_bfloat16(tensors) if self.compact else tensors

    def _prune(self, newest: Path) -> None:
        """Remove what no checkpoint needs, and what a killed process left half written."""
        needed = set()
        for path in self.all():
            if path != newest and not (path / "kept").exists():
                shutil.rmtree(path, ignore_errors=True)
                continue
            try:
                best = read_state(path).best_step
            except UserError:  # a damaged checkpoint that is to be kept: it stays, for its user to look at
                continue
            needed |= set() if best is None else {self.best_path(best).stem}
        for path in self.folder.glob("best-*.safetensors*"):
            if not path.name.startswith(tuple(needed)):
                path.unlink(missing_ok=True)
        for path in leftovers(self.folder):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)

    def load(self, net: nn.Module, optimizer: torch.optim.Optimizer, average: nn.Module | None = None) -> State | None:
        """Load the newest checkpoint into network and optimiser; return its state, or None if there is none."""

        def load(checkpoint: Path) -> State:
            state = read_state(checkpoint)
            load_weights(net, checkpoint / "weights.safetensors")
            if average is not None:
                load_weights(average, checkpoint / "average.safetensors")
            buffers: dict[str, dict[str, Tensor]] = defaultdict(dict)
            for stored, buffer in load_tensors(checkpoint / "optimizer.safetensors").items():
                key, _, name = stored.rpartition(":")
                buffers[name][key or MOMENTUM] = buffer
            for name, parameter in net.named_parameters():
                for key, buffer in buffers.get(name, {}).items():
                    # In the parameter's own memory format: the fused kernel walks both in storage order.
                    like = parameter if buffer.shape == parameter.shape else buffer.to(parameter.device)
                    optimizer.state[parameter][key] = torch.empty_like(like, requires_grad=False).copy_(buffer)
            check_sums(checkpoint)
            return state

        return self._read_newest(load)

    def load_weights(self, net: nn.Module, which: str, averaged: bool) -> int:
        """Load the "last" or "best" weights so far, to evaluate them; return the step that they are of."""

        def load(checkpoint: Path) -> int | None:
            state = read_state(checkpoint)
            step = state.step if which == "last" else state.best_step
            if step is not None:
                newest = checkpoint / ("average.safetensors" if averaged else "weights.safetensors")
                load_weights(net, newest if which == "last" else self.best_path(step))
                check_sums(checkpoint)
            return step

        step = self._read_newest(load)
        if step is None:
            raise self.lacks()
        return step

    def lacks(self) -> UserError:
        """Return the error for weights that are not there yet."""
        last = "no best weights yet, but the last ones (--which last)"
        missing = last if self.latest() else "no scores.json, and no checkpoint yet"
        return UserError(f"{self.folder.parent} has {missing}: {UNFINISHED}")

    def state(self) -> State | None:
        """Return the state in the newest checkpoint, or None if there is none."""
        return self._read_newest(read_state)

    def _read_newest(self, read: Callable[[Path], T]) -> T | None:
        """Read the newest checkpoint, or the next one if a training process replaces it meanwhile; None without any."""
        while (latest := self.latest()) is not None:
            try:
                return read(latest)
            except (UserError, OSError, RuntimeError) as error:
                if self.latest() == latest:
                    raise unusable(latest, error) from error
        return None

    def best(self, state: State) -> dict[str, Tensor] | None:
        """Return the weights of the best epoch so far, or None."""
        self.best_stored = state.best_step
        return None if state.best_step is None else load_tensors(self.best_path(state.best_step))

    def best_path(self, step: int) -> Path:
        return self.folder / f"best-{step:08d}.safetensors"


def read_state(checkpoint: Path) -> State:
    path = checkpoint / "state.json"
    try:
        fields = parse_json(path.read_text(encoding="utf-8"))
        if not is_state(fields):
            raise ValueError("it does not hold the progress of a training")
        meter = (*map(float, fields["meter"]), 0.0, 0.0)[:4]  # earlier versions had the first two
        state = State(**{**fields, "meter": meter})
        if state.logged is not None:
            state.logged = {int(epoch): str(line_hash) for epoch, line_hash in state.logged.items()}
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{path} is damaged ({first_line(error)})") from error
    checksums.verify(path)
    return state


def check_sums(checkpoint: Path) -> None:
    """Raise an error if a file of a checkpoint is missing or differs from its checksum."""
    for name, expected in checksums.read_sums(checkpoint).items():
        # Not through the file system: the folder of checkpoints may be a link to another disk.
        file = Path(os.path.normpath(checkpoint / name))
        if not file.is_file() or checksums.sha256(file) != expected:
            raise checksums.mismatch(file)


def unusable(checkpoint: Path, error: Exception) -> UserError:
    reason = " ".join(str(error).split()).partition("; ")[0]
    return UserError(
        f"the checkpoint {checkpoint} cannot be used: {reason}; restore it from a copy, or remove that folder to "
        "continue from an earlier one, or from the start if there is none"
    )


def moments(net: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the state of the optimiser by parameter: NAME for the momentum of SGD, KEY:NAME for others."""
    return {
        name if key == MOMENTUM else f"{key}:{name}": buffer
        for name, parameter in net.named_parameters()
        for key, buffer in optimizer.state.get(parameter, {}).items()
        if buffer is not None
    }
