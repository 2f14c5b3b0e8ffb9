"""The data sets by name, the data directory, and the command that gets missing files."""

import os
from collections.abc import Callable
from pathlib import Path

from mixmo.data.types import Dataset
from mixmo.utils.errors import UserError, check_path
from mixmo.utils.registry import Registry

DATASETS: Registry[Callable[..., Dataset]] = Registry("data set")
"""Readers of data sets by name.

`@DATASETS.add("NAME")` registers your own: a function of the data directory, a Path, that returns a `Dataset` on the
CPU. The first line of its docstring is shown by `mixmo list datasets`. If it has a parameter `train`, this is False
where only the test images are needed; the training split may then be empty.
"""


def data_directory(root: str | os.PathLike[str] | None) -> Path:
    """Return the data directory: `root`, else $MIXMO_DATA, else `data` in the working directory."""
    return Path(os.environ.get("MIXMO_DATA") or "data") if root is None else check_path("data directory", root)


def how_to_get(name: str, root: Path) -> str:
    """Return the command that gets the files of data set `name` into `root`.

    >>> how_to_get("cifar10", Path("data"))
    '`mixmo data get cifar10 --to data` downloads it'
    >>> how_to_get("cifar10-c-style", Path("data"))
    '`mixmo data corrupt cifar10 --data data --to data` generates it'
    """
    if name.endswith("-c-style"):
        return f"`mixmo data corrupt {name.removesuffix('-c-style')} --data {root} --to {root}` generates it"
    return f"`mixmo data get {name} --to {root}` downloads it"


def existing(file: str, name: str, root: Path) -> Path:
    """Return a file or folder of data set `name` in the data directory `root`; raise an error if there is none."""
    path = root / file
    if not path.exists():
        wanted = how_to_get(name, root)
        raise UserError(f"data set '{name}' needs {path}, which does not exist; {wanted}, or give --data")
    return path
