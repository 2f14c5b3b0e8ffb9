"""Checkpoints: a folder each, complete or not there at all, written while training goes on.

`checkpoints/00001562/` holds weights.safetensors, optimizer.safetensors, state.json and their checksums after 1,562
steps. It is written under another name and renamed; only then the one before it is removed. Those to be kept hold a
file `kept`. The best weights lie beside as `best-<step>.safetensors`, named in the state.
"""

import json
import os
import shutil
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from mixmo.storage import checksums
from mixmo.storage.files import halve, load_tensors, replacing, save_tensors, unwritten
from mixmo.storage.weights import fill
from mixmo.utils.errors import UserError


@dataclass
class State:
    """Where a training stands, apart from weights and momentum."""

    step: int = 0  # steps done
    epochs_logged: int = 0
    meter: tuple[float, ...] = (0.0, 0.0)  # sums over the steps of the epoch under way
    best_step: int | None = None
    best_top1: float = -1.0
    seconds: float = 0.0  # spent training so far
    logged: dict[int, str] | None = None  # sums of the epochs' lines in metrics.jsonl; in earlier versions, none


class Snapshot:
    """Copies of tensors that a thread may read while training changes the originals."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.tensors = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        on_gpu = any(tensor.is_cuda for tensor in self.tensors.values())
        self.ready = torch.cuda.current_stream().record_event() if on_gpu else None

    def fetch(self) -> dict[str, Tensor]:
        """In host memory. On a stream of its own, so that it waits for the copies and not for later steps."""
        if self.ready is None:
            return self.tensors
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda.current_stream().wait_event(self.ready)
            return {name: tensor.cpu() for name, tensor in self.tensors.items()}


class Checkpoints:
    """The checkpoints of one run.

    `every` keeps those after a multiple of so many steps, beside the last one, also when a later training keeps none.
    `shard_mb` bounds the files' size; `compact` stores weights and momentum in bfloat16: a training that continues from
    there is not bit for bit the same. Those of another `recipe`, a file, are refused.
    """

    def __init__(
        self,
        folder: Path,
        *,
        recipe: Path | None = None,
        every: int | None = None,
        shard_mb: float | None = None,
        compact: bool = False,
    ) -> None:
        self.folder, self.recipe = folder, recipe
        self.every, self.shard_mb, self.compact = every, shard_mb, compact
        self.writer = ThreadPoolExecutor(1, "checkpoint")
        self.writing: Future[None] | None = None
        self.best_stored: int | None = None  # step of the best weights that are known to be on the disk

    def latest(self) -> Path | None:
        """The newest complete checkpoint."""
        there = self.all()
        complete = [path for path in there if (path / "state.json").is_file()]
        if complete != there and self.all() != there:  # a training has just replaced one that was listed
            return self.latest()
        return max(complete, default=None, key=lambda path: int(path.name))

    def all(self) -> list[Path]:
        """Every checkpoint, and nothing else that a user may have put beside them."""
        return [path for path in self.folder.glob("[0-9]*") if path.name.isdecimal() and path.is_dir()]

    def save(
        self,
        state: State,
        net: nn.Module,
        optimizer: torch.optim.Optimizer,
        best: dict[str, Tensor] | None,
        average: nn.Module | None = None,
    ) -> None:
        """Write a checkpoint in the background. A failure changes nothing; the next `save` or `wait` raises it."""
        self.wait()
        parts = {"weights": Snapshot(net.state_dict()), "optimizer": Snapshot(momentum(net, optimizer))}
        if average is not None:
            parts["average"] = Snapshot(average.state_dict())
        # The best weights are copies already, and replaced rather than changed.
        self.writing = self.writer.submit(self._write, replace(state), parts, best)

    def wait(self) -> None:
        """Until what was begun is on the disk."""
        writing, self.writing = self.writing, None
        if writing is not None:
            writing.result()

    def _write(self, state: State, parts: dict[str, Snapshot], best: dict[str, Tensor] | None) -> None:
        final = self.folder / f"{state.step:08d}"
        temporary = self.folder / f".{final.name}.tmp"
        try:
            self.folder.mkdir(exist_ok=True)  # in a run that is still there
            if best is not None and state.best_step is not None:
                self._write_best(best, state.best_step)
            # One of this step is this one: to replace it would leave none for a moment.
            if not (final / "state.json").is_file():
                shutil.rmtree(temporary, ignore_errors=True)
                temporary.mkdir()
                for name, snapshot in parts.items():
                    tensors = snapshot.fetch()
                    check_finite(tensors, state.step)
                    save_tensors(self._packed(tensors), temporary / f"{name}.safetensors", self.shard_mb)
                with replacing(temporary / "state.json") as file:  # on the disk before the one before it goes
                    file.write_text(json.dumps(asdict(state)))
                with replacing(temporary / checksums.NAME) as file:
                    files = [*sorted(temporary.iterdir()), *self._beside(state)]
                    file.write_text(
                        checksums.sums({Path(os.path.relpath(path, temporary)).as_posix(): path for path in files})
                    )
                shutil.rmtree(final, ignore_errors=True)
                temporary.rename(final)
            if self.every and state.step % self.every == 0:
                (final / "kept").touch()
        except OSError as error:
            raise unwritten(final, error) from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        self._prune(final)

    def _write_best(self, best: dict[str, Tensor], step: int) -> None:
        """Once. A file of that name which was neither written nor read here may be a damaged one."""
        if step != self.best_stored:
            save_tensors(self._packed(best), self.best_path(step), self.shard_mb)
            self.best_stored = step

    def _best_files(self, step: int) -> list[Path]:
        """The best weights: a file, or shards and their index."""
        return sorted(self.folder.glob(f"{self.best_path(step).stem}*.safetensors*"))

    def _beside(self, state: State) -> list[Path]:
        """What a checkpoint needs of what does not lie in it."""
        best = [] if state.best_step is None else self._best_files(state.best_step)
        return best if self.recipe is None else [*best, self.recipe]

    def _packed(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return halve(tensors) if self.compact else tensors

    def load(self, net: nn.Module, optimizer: torch.optim.Optimizer, average: nn.Module | None = None) -> State | None:
        """Continue from the newest checkpoint: its state, or None where there is none yet."""
        latest = self.latest()
        if latest is None:
            return None
        try:
            state = read_state(latest)
            fill(net, latest / "weights.safetensors")
            if average is not None:
                fill(average, latest / "average.safetensors")
            buffers = load_tensors(latest / "optimizer.safetensors")
            for name, parameter in net.named_parameters():
                if name in buffers:
                    # In the parameter's own memory format: the fused kernel walks both in storage order.
                    buffer = torch.empty_like(parameter, requires_grad=False).copy_(buffers[name])
                    optimizer.state[parameter]["momentum_buffer"] = buffer
            check_sums(latest)
        except (UserError, RuntimeError) as error:
            raise unusable(latest, error) from error
        return state

    def fill(self, net: nn.Module, which: str, averaged: bool) -> int:
        """Fill a network with the weights to score, the newest or the best so far, and give the step of these.

        Where a training goes on, a checkpoint may be replaced while it is read: then the next one is read.
        """
        while (latest := self.latest()) is not None:
            try:
                state = read_state(latest)
                step = state.step if which == "last" else state.best_step
                if step is None:
                    break
                newest = latest / ("average.safetensors" if averaged else "weights.safetensors")
                fill(net, newest if which == "last" else self.best_path(step))
                check_sums(latest)
                return step
            except (UserError, OSError) as error:
                if self.latest() == latest:
                    raise unusable(latest, error) from error
        missing = "no checkpoint yet" if latest is None else "no best weights yet, but the last ones (--which last)"
        scores = self.folder.with_name("scores.json")
        raise UserError(
            f"{scores} is missing: the training has not ended, and has {missing}; continue it with --resume"
        )

    def state(self) -> State | None:
        """Where the training stands by now, without its weights; None where there is no checkpoint yet."""
        while (latest := self.latest()) is not None:
            try:
                state = read_state(latest)
                checksums.check(latest / "state.json")
                return state
            except (UserError, OSError) as error:
                if self.latest() == latest:
                    raise unusable(latest, error) from error
        return None

    def best(self, state: State) -> dict[str, Tensor] | None:
        """The weights of the best epoch so far."""
        if state.best_step is None:
            return None
        best = load_tensors(self.best_path(state.best_step))
        self.best_stored = state.best_step
        return best

    def best_path(self, step: int) -> Path:
        return self.folder / f"best-{step:08d}.safetensors"

    def _prune(self, newest: Path) -> None:
        """Remove what no checkpoint needs, and what a killed process left half written."""
        named = set()
        for path in self.all():
            if path != newest and not (path / "kept").exists():
                shutil.rmtree(path, ignore_errors=True)
                continue
            try:
                best = read_state(path).best_step
            except UserError:  # one to be kept that was damaged: it stays, for its user to look at
                continue
            named |= set() if best is None else {self.best_path(best).stem}
        for path in self.folder.glob("best-*.safetensors*"):
            if not path.name.startswith(tuple(named)):
                path.unlink(missing_ok=True)
        for path in self.folder.glob(".*.tmp"):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def check_finite(tensors: dict[str, Tensor], step: int) -> None:
    """Refuses what the last step ruined, of which the loss says nothing yet: it would replace what is good."""
    if not all(tensor.isfinite().all() for tensor in tensors.values()):
        raise UserError(
            f"weights or momentum are NaN or infinite after step {step}: training diverged; nothing more was saved: "
            "take a lower lr or a longer warmup, and another --out"
        )


def read_state(checkpoint: Path) -> State:
    """Where the training stood, according to a checkpoint."""
    path = checkpoint / "state.json"
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        state = State(**{**fields, "meter": tuple(map(float, fields["meter"]))})
        if state.logged is not None:
            state.logged = {int(epoch): str(of_line) for epoch, of_line in state.logged.items()}
        numbers = (state.step, state.epochs_logged, state.best_step or 0)
        if not all(isinstance(number, int) for number in numbers) or state.step != int(checkpoint.name):
            raise ValueError(f"it is of step {state.step}")
        return replace(state, best_top1=float(state.best_top1), seconds=float(state.seconds))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UserError(f"{path} is damaged ({error})") from error


def check_sums(checkpoint: Path) -> None:
    """Refuses a checkpoint with files that are not those it was saved with, or without one of them."""
    for name, expected in checksums.read(checkpoint).items():
        # Not through the file system: the folder of checkpoints may be a link to another disk.
        file = Path(os.path.normpath(checkpoint / name))
        if not file.is_file() or checksums.digest(file) != expected:
            raise checksums.changed(file)


def unusable(checkpoint: Path, error: Exception) -> UserError:
    """One sentence, though the error may be several, for other remedies than that of a checkpoint."""
    reason = " ".join(str(error).split()).partition("; ")[0]
    return UserError(
        f"the checkpoint {checkpoint} cannot be used: {reason}; bring back what it was from a copy, or remove that "
        "folder to continue from an earlier one, or from the start if there is none"
    )


def momentum(net: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's state by parameter name."""
    buffers = {name: optimizer.state[p].get("momentum_buffer") for name, p in net.named_parameters()}
    return {name: buffer for name, buffer in buffers.items() if buffer is not None}
