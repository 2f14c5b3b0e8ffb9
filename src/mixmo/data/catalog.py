"""Where data sets are registered by name, and what every reader says when its files are not there."""

import inspect
import os
from collections.abc import Callable
from pathlib import Path

from mixmo.data.types import Dataset
from mixmo.utils.errors import UserError, check_path
from mixmo.utils.registry import Registry

# The data directory -> the data set on the CPU. One that takes `train` is told whether the train images will be looked
# at; if not, it need not read them, and gives an empty split.
Loader = Callable[..., Dataset]

DATASETS: Registry[Loader] = Registry("data set")


def read(name: str, root: Path, train: bool) -> Dataset:
    """The registered data set `name`, as its reader gives it; by that name it can be read again."""
    reader = DATASETS[name]
    told = {"train": train} if "train" in inspect.signature(reader).parameters else {}
    return reader(root, **told)._replace(name=name)


def where(root: str | os.PathLike[str] | None) -> Path:
    """The data directory: the one given, else $MIXMO_DATA, else `data` in the working directory."""
    return Path(os.environ.get("MIXMO_DATA") or "data") if root is None else check_path("data directory", root)


def remedy(name: str, root: Path) -> str:
    """What to type to get the files of data set `name` under `root`.

    >>> remedy("cifar10", Path("data"))
    '`mixmo data get cifar10 --to data` fetches it'
    >>> remedy("cifar10-c-style", Path("data"))
    '`mixmo data corrupt cifar10 --data data --to data` makes it'
    """
    if name.endswith("-c-style"):
        return f"`mixmo data corrupt {name.removesuffix('-c-style')} --data {root} --to {root}` makes it"
    return f"`mixmo data get {name} --to {root}` fetches it"


def present(path: Path, name: str, root: Path) -> Path:
    """`path`, once it is known to exist; `name` is the data set that needs it and `root` the data directory."""
    if not path.exists():
        raise UserError(
            f"data set '{name}' needs {path}, which does not exist; {remedy(name, root)}, "
            "or --data or MIXMO_DATA says where it is"
        )
    return path
