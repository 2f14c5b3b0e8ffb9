"""A run is a folder that explains itself.

recipe.yaml          the resolved recipe; `--config` reads it back
environment.json     versions, device, commit
dataset.json         class names and normalisation, so that the weights can be used alone
metrics.jsonl        one line an epoch
checkpoints/         to resume from
last.safetensors     final weights;  best.safetensors: those of the best epoch
logits-last.safetensors, logits-best.safetensors    every head's test logits (heads, N, K) and the labels
scores.json          what `mixmo eval` prints; the last file, once everything else is there
SHA256SUMS           checksums of all these files of a finished run, each verified when it is read
.lock                held by the process that trains
"""

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
import yaml

from mixmo._version import __version__
from mixmo.metrics.logits import LabelledLogits
from mixmo.recipes.schema import Recipe
from mixmo.runs.checkpoint import Checkpoints
from mixmo.storage import checksums
from mixmo.storage.files import AGAIN, UNFINISHED, load_tensors, locked, replacing, unwritten
from mixmo.utils.errors import UserError

WHICH = ("last", "best")
LOCK = ".lock"
SEALED = ("recipe.yaml", "*.json", "metrics.jsonl", "best*.safetensors", "last*.safetensors", "logits-*.safetensors")
OWN = ("unknown model family", "unknown mask", "unknown pixel augmentation")  # of which a user may have added some
SCORES = ("top1", "top5", "nll", "nllc", "ece", "brier")
FIELDS: dict[str, dict[str, type]] = {  # what the JSON files of a run hold at least; a dot goes one level down
    "dataset.json": {"name": str, "classes": list, "mean": list, "std": list, "size": list},
    "environment.json": {"device_name": str},
    "scores.json": {
        "parameters": int,
        "multiply_adds": int,
        "best_by": str,
        "best_epoch": int,
        **{f"{which}.members": list for which in WHICH},
        **{f"{which}.ensemble.{score}": float for which in WHICH for score in SCORES},
    },
}


def is_run(path: Path | str) -> bool:
    """Whether a training was begun there; other folders may hold a saved network."""
    return (Path(path) / "recipe.yaml").is_file()


class Run:
    """A run directory."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    @classmethod
    def create(cls, path: Path | str, recipe: Recipe) -> "Run":
        """A new run. A folder that holds anything is refused: nothing is overwritten."""
        run = cls(path)
        run.make_folder()
        if is_run(run.path):
            raise UserError(f"{run.path} exists already; give --resume to continue it, or another --out")
        run.write_recipe(recipe)
        return run

    def make_folder(self) -> None:
        """A place for a run. What holds anything, and is none, is refused."""
        try:
            taken = self.path.exists() and (not self.path.is_dir() or any(map(_counts, self.path.iterdir())))
            if taken and not is_run(self.path):
                raise UserError(f"{self.path} exists already and is no run directory; give another --out")
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{self.path} cannot be made ({error.strerror or error}); give another --out") from error

    @classmethod
    def open(cls, path: Path | str) -> "Run":
        """A run that exists."""
        run = cls(path)
        if not is_run(run.path):
            if is_run(run.path.parent):
                missing = "that network has not begun to train, or was removed"
                raise UserError(f"{run.path} is no run directory: {missing}; give the folders beside it that are")
            raise UserError(f"{run.path} is no run directory: it has no recipe.yaml; give the --out of a `mixmo train`")
        return run

    @classmethod
    def open_each(cls, paths: Iterable[Path | str]) -> list["Run"]:
        """The runs of one network each that lie there, in the folders of ensembles too."""
        return [cls.open(path) for given in paths for path in cls.open(given).networks()]

    @property
    def recipe(self) -> Recipe:
        path = self.path / "recipe.yaml"
        try:
            text = path.read_text(encoding="utf-8")
            fields = yaml.safe_load(text)
            if not isinstance(fields, dict):
                raise UserError("it holds no fields")
            if not text.endswith("\n"):  # the fields that a copy cut short has lost would pass for their defaults
                raise UserError("it ends amid a line")
            fields["decay"] = tuple(fields.get("decay", ()))
            recipe = Recipe().replace(**fields)
        except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
            reason = " ".join(str(error).split())
            remedy = "restore it or train again"
            if reason.startswith(OWN):
                remedy += ", or add the parts of your own that it names first (docs/extending.md)"
            raise UserError(f"{path} cannot be read as a recipe ({reason}); {remedy}") from error
        checksums.check(path)
        return recipe

    def write_recipe(self, recipe: Recipe) -> None:
        self.write("recipe.yaml", yaml.safe_dump(recipe.to_dict(), sort_keys=False))

    def write(self, name: str, text: str) -> None:
        """Write a whole file or nothing: an earlier one stays until the new one is on the disk."""
        with replacing(self.path / name) as path:
            path.write_bytes(text.encode())

    def finish(self, scores: dict[str, Any]) -> None:
        """Write scores.json, and before it takes its place the checksums of all that a finished run answers with."""
        with replacing(self.path / "scores.json") as temporary:
            temporary.write_text(json.dumps(scores, indent=2))
            files = [path for pattern in SEALED for path in sorted(self.path.glob(pattern))]
            self.write(
                checksums.NAME, checksums.sums({**{file.name: file for file in files}, "scores.json": temporary})
            )

    def logits(self, which: str = "last") -> LabelledLogits:
        """Every head's test logits (heads, N, K) and the labels (N,); of several networks, the heads of all."""
        parts = [_logits(path / f"logits-{which}.safetensors") for path in self.networks()]
        labels_N = parts[0].labels
        if not all(torch.equal(part.labels, labels_N) for part in parts):
            raise UserError(
                f"the networks of {self.path} were tested on different data; remove scores.json in each of its folders "
                "and train with --resume, which tests them again"
            )
        return LabelledLogits(torch.cat([part.logits for part in parts]), labels_N)

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl. Those that changed since they were written are refused."""
        path = self.path / "metrics.jsonl"
        if not path.exists():
            return []
        # Before the lines, of which a training may add more: what a checkpoint remembers, they have.
        ended = (self.path / "scores.json").is_file()
        state = None if ended else Checkpoints(self.path / "checkpoints").state()
        try:
            text = path.read_text(encoding="utf-8")
            checksums.check(path)
        except UnicodeDecodeError as error:
            raise UserError(f"{path} is damaged ({error}); restore it, or remove it to go on without") from error
        lines, parsed = text.splitlines(), list[dict[str, Any]]()
        for number, line in enumerate(lines, 1):
            try:
                found = json.loads(line)
            except (ValueError, RecursionError) as error:
                # A killed process may leave half a line at the end; it is written again on resume.
                if number < len(lines) or text.endswith("\n"):
                    raise UserError(f"{path} is damaged ({error} of line {number}); remove that line") from error
                break
            if not isinstance(found, dict) or not isinstance(found.get("epoch"), int):
                raise UserError(f"{path} is damaged (line {number} is no epoch); remove that line")
            if parsed and found["epoch"] <= parsed[-1]["epoch"]:
                raise UserError(
                    f"{path} is damaged (line {number} is of epoch {found['epoch']}, after epoch "
                    f"{parsed[-1]['epoch']}); remove that line"
                )
            parsed.append(found)
        if state is not None and state.logged is not None:
            until = [line for line in parsed if line["epoch"] <= state.epochs_logged]
            checksums.check_lines(path, checksums.of_lines(until), state.logged)
        return parsed

    def metrics_until(self, epoch: int) -> list[dict[str, Any]]:
        """Those up to this epoch: what comes after the checkpoint to go on from will be written again."""
        return [line for line in self.metrics() if line["epoch"] <= epoch]

    def add_metrics(self, line: dict[str, Any]) -> None:
        """One more line of metrics.jsonl."""
        path = self.path / "metrics.jsonl"
        try:
            with path.open("a") as file:
                file.write(json.dumps(line) + "\n")
                file.flush()
                os.fsync(file.fileno())  # on the disk before the checkpoint that says so
        except OSError as error:
            raise unwritten(path, error) from error

    def json(self, name: str) -> dict[str, Any]:
        """A JSON file of the run, with the fields that it must have."""
        path = self.path / name
        if not path.exists() and not self.finished:
            raise UserError(f"{path} is missing: {UNFINISHED}")
        try:
            found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except PermissionError as error:
            raise UserError(f"{path} cannot be read ({error.strerror}); make it readable") from error
        except (OSError, ValueError, RecursionError) as error:
            raise UserError(f"{path} cannot be read ({error}); {_remedy(name)}") from error
        for field, kind in FIELDS.get(name, {}).items():
            if not isinstance(_below(found, field), kind):
                raise UserError(f"{path} is damaged: it has no {field} as a {kind.__name__}; {_remedy(name)}")
        if name == "dataset.json" and len(found["size"]) != 3:
            raise UserError(f"{path} is damaged: its size is not channels, height and width; {_remedy(name)}")
        checksums.check(path)
        return found

    def networks(self) -> list[Path]:
        """Where the runs of its networks are: itself, or a folder each for a recipe of several."""
        count = self.recipe.networks
        return [self.path] if count == 1 else [self.path / str(i) for i in range(count)]

    @property
    def begun(self) -> bool:
        """Whether anything was trained, of this network or of those in its folders; also if its recipe is gone."""
        folders = [self.path, *(path for path in self.path.iterdir() if path.is_dir())]
        logs = [folder / "metrics.jsonl" for folder in folders]
        return any((log.parent / "checkpoints").is_dir() or (log.is_file() and log.stat().st_size > 0) for log in logs)

    @property
    def finished(self) -> bool:
        return all((path / "scores.json").is_file() for path in self.networks())

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """The right to write here, for one process at a time, also where there is no folder yet.

        It is asked for before anything is looked at: of two that begin at once, one finds all as it was, and the other
        is told why it may not. The system takes it back however the process ends.
        """
        busy = f"another process is training {self.path}; wait until it has ended, or give another --out"
        self.make_folder()
        with ExitStack() as held:
            try:
                held.enter_context(locked(self.path / LOCK, busy))
            except FileNotFoundError as error:  # the folder that was just made is gone: its maker failed and clears up
                raise UserError(busy) from error
            except OSError as error:
                raise unwritten(self.path / LOCK, error) from error
            for left in self.path.glob(".*.tmp"):  # by a process that was killed
                left.unlink(missing_ok=True)
            yield

    @contextmanager
    def gone_unless_begun(self, ours: bool) -> Iterator[None]:
        """What fails before anything was trained leaves nothing behind that a second try would stumble over.

        The folder itself stays if it is not `ours`: it was there before, perhaps as a link or a mount point.
        """
        try:
            yield
        except BaseException:
            with suppress(OSError, UserError):  # of a folder that is gone, say: what went wrong first is what to say
                self._clear(ours)
            raise

    def _clear(self, ours: bool) -> None:
        if not self.begun:
            # The recipe, then the lock go last: who comes meanwhile finds a run that another process has.
            for path in sorted(self.path.iterdir(), key=lambda path: (path.name == LOCK, path.name == "recipe.yaml")):
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
            if ours:
                self.path.rmdir()


def _counts(path: Path) -> bool:
    """Whether a folder with this file is in use; one that a process killed at its very start leaves does not count."""
    return path.name != LOCK and not (path.name.startswith(".") and path.name.endswith(".tmp"))


def _below(found: Any, field: str) -> Any:
    for part in field.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found


def _remedy(name: str) -> str:
    """How a file of a run comes back."""
    if name == "scores.json":
        return "remove it and train with --resume, which writes it again"
    return "remove scores.json beside it and train with --resume, which writes it again"


def _logits(path: Path) -> LabelledLogits:
    tensors = load_tensors(path)
    logits, labels = tensors.get("logits"), tensors.get("labels")
    if logits is None or labels is None or logits.dim() != 3 or logits.shape[1:2] != labels.shape:
        raise UserError(f"{path} holds no logits (heads, N, K) with N labels; {AGAIN}")
    if not logits.is_floating_point():
        raise UserError(f"{path} holds logits of type {logits.dtype}; {AGAIN}")
    return LabelledLogits(logits, labels)


def flat(value: Any, between: str, path: str = "") -> Iterator[tuple[str, float]]:
    """The numbers in nested dicts and lists, as in a line of metrics.jsonl, each under its path.

    >>> dict(flat({"epoch": 1, "test": {"members": [{"top1": 0.5}], "diversity": None}}, "."))
    {'epoch': 1, 'test.members.0.top1': 0.5}
    """
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from flat(inner, between, f"{path}{between}{key}" if path else str(key))
    elif isinstance(value, int | float):
        yield path, value


def environment(device: torch.device) -> dict[str, Any]:
    """What a reader needs to know about where a run was made. No path and no host name."""
    commit = None
    with suppress(OSError):  # where there is no git
        if _git("ls-files", "--error-unmatch", Path(__file__).name):  # else installed somewhere inside another project
            commit = _git("rev-parse", "HEAD") or None
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {
        "mixmo": __version__,
        "commit": commit,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "device": device.type,
        "device_name": name,
        "threads": torch.get_num_threads(),
        "platform": sys.platform,
    }


def _git(*words: str) -> str:
    command = ["git", "-C", str(Path(__file__).parent), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
