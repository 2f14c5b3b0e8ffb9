"""A run is a folder that explains itself.

recipe.yaml          the resolved recipe; `--config` reads it back
environment.json     versions, device, commit
dataset.json         class names and normalisation, so that the weights can be used alone
metrics.jsonl        one line an epoch
checkpoints/         to resume from
last.safetensors     final weights;  best.safetensors: those of the best epoch
logits-last.safetensors, logits-best.safetensors    every head's test logits (heads, N, K) and the labels
scores.json          what `mixmo eval` prints
.lock                held by the process that trains
"""

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
import yaml
from huggingface_hub import split_torch_state_dict_into_shards
from torch import Tensor

import mixmo
from mixmo.errors import UserError
from mixmo.recipes.schema import Recipe

WHICH = ("last", "best")
LOCK = ".lock"


class Run:
    """A run directory."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    @classmethod
    def create(cls, path: Path | str, recipe: Recipe) -> "Run":
        """A new run. A folder that holds anything is refused: nothing is overwritten."""
        run = cls(path)
        if run.path.exists() and (not run.path.is_dir() or any(run.path.iterdir())):
            if (run.path / "recipe.yaml").exists():
                raise UserError(f"{run.path} exists already; give --resume to continue it, or another --out")
            raise UserError(f"{run.path} exists already and is no run directory; give another --out")
        run.path.mkdir(parents=True, exist_ok=True)
        run.write_recipe(recipe)
        return run

    @classmethod
    def open(cls, path: Path | str) -> "Run":
        """A run that exists."""
        run = cls(path)
        if not (run.path / "recipe.yaml").is_file():
            raise UserError(f"{run.path} is no run directory: it has no recipe.yaml; give the --out of a `mixmo train`")
        return run

    @property
    def recipe(self) -> Recipe:
        path = self.path / "recipe.yaml"
        try:
            fields = yaml.safe_load(path.read_text())
            if not isinstance(fields, dict):
                raise UserError("it holds no fields")
            fields["decay"] = tuple(fields.get("decay", ()))
            return Recipe().replace(**fields)
        except (yaml.YAMLError, UnicodeDecodeError, UserError, TypeError) as error:
            raise UserError(f"{path} cannot be read as a recipe ({error}); restore it or train again") from error

    def write_recipe(self, recipe: Recipe) -> None:
        self.write("recipe.yaml", yaml.safe_dump(plain(recipe), sort_keys=False))

    def write(self, name: str, content: str | bytes) -> None:
        """Write a whole file or nothing: an earlier one stays until the new one is on the disk."""
        with replacing(self.path / name) as path:
            path.write_bytes(content.encode() if isinstance(content, str) else content)

    def write_tensors(self, name: str, tensors: dict[str, Tensor], shard_mb: float | None = None) -> None:
        save_tensors(tensors, self.path / name, shard_mb)

    def logits(self, which: str = "last") -> tuple[Tensor, Tensor]:
        """Every head's test logits (heads, N, K) and the labels (N,)."""
        tensors = load_tensors(self.path / f"logits-{which}.safetensors")
        return tensors["logits"], tensors["labels"]

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl."""
        path = self.path / "metrics.jsonl"
        if not path.exists():
            return []
        lines, parsed = path.read_text().splitlines(), []
        for number, line in enumerate(lines, 1):
            try:
                parsed.append(json.loads(line))
            except json.JSONDecodeError as error:
                # A killed process may leave half a line at the end; it is written again on resume.
                if number < len(lines):
                    raise UserError(f"{path} is damaged ({error} of line {number}); remove that line") from error
        return parsed

    def add_metrics(self, line: dict[str, Any]) -> None:
        """One more line of metrics.jsonl."""
        path = self.path / "metrics.jsonl"
        try:
            with path.open("a") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise unwritten(path, error) from error

    def json(self, name: str) -> Any:
        """A JSON file of the run."""
        path = self.path / name
        try:
            return json.loads(path.read_text())
        except (OSError, json.JSONDecodeError) as error:
            raise UserError(f"{path} cannot be read ({error}); finish the training with --resume") from error

    def networks(self) -> list[Path]:
        """Where the runs of its networks are: itself, or a folder each for a recipe of several."""
        count = self.recipe.networks
        return [self.path] if count == 1 else [self.path / str(i) for i in range(count)]

    @property
    def begun(self) -> bool:
        """Whether anything was trained."""
        return any((path / "checkpoints").is_dir() or Run(path).metrics() for path in self.networks())

    @property
    def finished(self) -> bool:
        return all((path / "scores.json").is_file() for path in self.networks())

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """The right to write here, for one process at a time. The system takes it back however the process ends."""
        if sys.platform == "win32":
            yield
            return
        import fcntl

        with (self.path / LOCK).open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise UserError(
                    f"another process is training {self.path}; wait until it has ended, or give another --out"
                ) from error
            yield

    @contextmanager
    def gone_unless_begun(self) -> Iterator[None]:
        """What fails before anything was trained leaves no folder behind that a second try would stumble over."""
        try:
            yield
        except BaseException:
            if not self.begun:
                shutil.rmtree(self.path, ignore_errors=True)
            raise


def plain(recipe: Recipe) -> dict[str, Any]:
    """A recipe as YAML and JSON can hold it."""
    return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(recipe).items()}


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary neighbour that takes the place of `path` when all went well, and is removed when not."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise unwritten(path, error) from error
    finally:
        temporary.unlink(missing_ok=True)


def unwritten(path: Path, error: OSError) -> UserError:
    return UserError(
        f"{path} could not be written ({error.strerror}); what was there before is intact: free some space, "
        f"then continue with --resume"
    )


def save_tensors(tensors: dict[str, Tensor], path: Path, shard_mb: float | None = None) -> None:
    """A safetensors file, whole or not at all.

    With `shard_mb`, files of at most that size and an index beside them, as the Hugging Face Hub has them:
    last-00001-of-00003.safetensors, ..., last.safetensors.index.json. A tensor is never cut.
    """
    ready = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    files = {path.name: list(ready)}
    if shard_mb is not None:
        pattern, size = f"{path.stem}{{suffix}}.safetensors", max(1, int(shard_mb * 1e6))
        shards = split_torch_state_dict_into_shards(ready, filename_pattern=pattern, max_shard_size=size)
        files = shards.filename_to_tensors
    for file, names in files.items():
        with replacing(path.with_name(file)) as into:
            try:
                safetensors.torch.save_file({name: ready[name] for name in names}, into)
            except safetensors.SafetensorError as error:
                raise OSError(0, str(error)) from error
    if len(files) > 1:
        with replacing(index_of(path)) as into:
            index = {"metadata": shards.metadata, "weight_map": shards.tensor_to_filename}
            into.write_text(json.dumps(index, indent=1))


def load_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, whole or in shards."""
    if not path.is_file() and index_of(path).is_file():
        try:
            files = sorted(set(json.loads(index_of(path).read_text())["weight_map"].values()))
        except (ValueError, KeyError, AttributeError) as error:
            raise UserError(f"{index_of(path)} is damaged ({error}); restore it from where it was written") from error
        return {name: tensor for file in files for name, tensor in load_tensors(path.with_name(file)).items()}
    if not path.is_file():
        raise UserError(f"{path} is missing; if it is a run, finish the training with --resume, or train again")
    try:
        tensors: dict[str, Tensor] = safetensors.torch.load_file(path)
        return tensors
    except safetensors.SafetensorError as error:
        raise UserError(f"{path} is damaged ({error}); delete it and resume from an earlier checkpoint") from error


def index_of(path: Path) -> Path:
    """Which shards hold the tensors of `path`."""
    return path.with_name(f"{path.name}.index.json")


def halve(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Half the size: matrices and filters in bfloat16. Vectors stay: they are few, and batch statistics need digits."""
    return {name: t.bfloat16() if t.dim() > 1 and t.is_floating_point() else t for name, t in tensors.items()}


def environment(device: torch.device) -> dict[str, Any]:
    """What a reader needs to know about where a run was made. No path and no host name."""
    here = Path(__file__).parent
    git = subprocess.run(["git", "-C", here, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {
        "mixmo": mixmo.__version__,
        "commit": git.stdout.strip() or None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "device": device.type,
        "device_name": name,
        "threads": torch.get_num_threads(),
        "platform": sys.platform,
    }
