"""A run is a folder that explains itself.

recipe.yaml          the resolved recipe; `--config` reads it back
environment.json     versions, device, commit
dataset.json         class names and normalisation, so that the weights can be used alone
metrics.jsonl        one line an epoch
checkpoints/         to resume from
last.safetensors     final weights;  best.safetensors: those of the best epoch
logits-last.safetensors, logits-best.safetensors    every head's test logits (heads, N, K) and the labels
scores.json          what `mixmo eval` prints
"""

import json
import os
import platform
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
from torch import Tensor

import mixmo
from mixmo.errors import UserError
from mixmo.recipes.schema import Recipe

WHICH = ("last", "best")


class Run:
    """A run directory."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    @classmethod
    def create(cls, path: Path | str, recipe: Recipe) -> "Run":
        """A new run. A folder that holds anything is refused: nothing is overwritten."""
        run = cls(path)
        if run.path.exists() and (not run.path.is_dir() or any(run.path.iterdir())):
            raise UserError(f"{run.path} exists already; give --resume to continue it, or another --out")
        run.path.mkdir(parents=True, exist_ok=True)
        run.write("recipe.yaml", yaml.safe_dump(plain(recipe), sort_keys=False))
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

    def write(self, name: str, content: str | bytes) -> None:
        """Write a whole file or nothing: an earlier one stays until the new one is on the disk."""
        with replacing(self.path / name) as path:
            path.write_bytes(content.encode() if isinstance(content, str) else content)

    def write_tensors(self, name: str, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
        with replacing(self.path / name) as path:
            save_tensors(tensors, path, metadata)

    def logits(self, which: str = "last") -> tuple[Tensor, Tensor]:
        """Every head's test logits (heads, N, K) and the labels (N,)."""
        tensors = load_tensors(self.path / f"logits-{which}.safetensors")
        return tensors["logits"], tensors["labels"]

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl."""
        path = self.path / "metrics.jsonl"
        if not path.exists():
            return []
        lines = path.read_text().splitlines()
        # A killed process may leave half a line at the end; it is written again on resume.
        return [json.loads(line) for line in lines if line.endswith("}")]

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
    def finished(self) -> bool:
        return all((path / "scores.json").is_file() for path in self.networks())


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


def save_tensors(tensors: dict[str, Tensor], path: Path, metadata: dict[str, str] | None = None) -> None:
    """safetensors, with its own I/O error turned back into an OSError."""
    ready = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        safetensors.torch.save_file(ready, path, metadata)
    except safetensors.SafetensorError as error:
        raise OSError(0, str(error)) from error
    finally:
        ready.clear()


def load_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file."""
    if not path.is_file():
        raise UserError(f"{path} is missing; finish the training with --resume, or train again")
    try:
        tensors: dict[str, Tensor] = safetensors.torch.load_file(path)
        return tensors
    except safetensors.SafetensorError as error:
        raise UserError(f"{path} is damaged ({error}); delete it and resume from an earlier checkpoint") from error


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
