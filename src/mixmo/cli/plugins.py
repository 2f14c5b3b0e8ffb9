"""User-defined masks, networks, data sets and metrics: Python modules that register them when they are imported.

Found in this order: installed packages with an entry point of the group `mixmo.plugins`, the files or modules in the
environment variable MIXMO_PLUGINS (separated as in PATH), and those of --plugin. Recipes may name their functions as
backbones (model = module:function).
"""

import os
import re
import sys
import warnings
from collections.abc import Sequence
from importlib.machinery import SourceFileLoader
from importlib.metadata import entry_points
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

from mixmo.surgery.user_models import allow, allow_file, import_allowed
from mixmo.utils.errors import UserError, first_line

MODULE = re.compile(r"(?!.*\.py$)[A-Za-z_][\w.]*")


def split_plugins(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the file or module of every --plugin, and the other arguments.

    >>> split_plugins(["--plugin", "a.py", "train", "digits/vanilla", "--plugin=b.py"])
    (['a.py', 'b.py'], ['train', 'digits/vanilla'])
    """
    files, words, left = list[str](), list[str](), list(arguments)
    while left and left[0] != "--":
        option, sign, value = (word := left.pop(0)).partition("=")
        if option != "--plugin":
            words.append(word)
        elif sign or left:
            files.append(value if sign else left.pop(0))
        else:
            raise UserError("--plugin needs a value; give a Python file or module")
    return files, words + left


def load_plugins(files: Sequence[str]) -> None:
    """Import every plugin. An installed package that fails is a warning, a file that fails a UserError."""
    for entry in entry_points(group="mixmo.plugins"):
        try:
            entry.load()
            allow(entry.module)
        except Exception as error:
            warnings.warn(f"the installed plugin '{entry.name}' ({entry.value}) {_failed(error)}", stacklevel=2)
    for file in [*filter(None, os.environ.get("MIXMO_PLUGINS", "").split(os.pathsep)), *files]:
        path = Path(file).expanduser().resolve()
        if MODULE.fullmatch(file) and not path.exists():
            _import_module(file)
        else:
            _import_file(path)


def _import_module(name: str) -> None:
    allow(name)
    try:
        import_allowed(name)
    except Exception as error:
        raise UserError(f"--plugin {name} {_failed(error)}; give a Python file, or an installed module") from error


def _import_file(path: Path) -> None:
    name = f"mixmo_plugin_{path.stem}"
    if name in sys.modules and sys.modules[name].__file__ == str(path):  # its registrations are there
        return
    loader = SourceFileLoader(name, str(path))
    spec = spec_from_loader(name, loader)
    assert spec is not None
    sys.modules[name] = module = module_from_spec(spec)
    try:
        loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise UserError(f"--plugin {path} {_failed(error)}; correct the file") from error
    allow_file(path, module)


def _failed(error: Exception) -> str:
    return f"cannot be imported: {type(error).__name__}: {first_line(error)}"
