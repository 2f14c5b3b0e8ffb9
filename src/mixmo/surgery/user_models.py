"""User-defined classifiers, by module:function: called only if the user allowed it in this process.

A recipe may come from elsewhere, with a run or a file. What it names is imported only where the user named it too: by
`--model` on the command line, as `--plugin`, or by `allow`.
"""

import importlib
import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

from mixmo.utils.errors import UserError, first_line

_allowed: set[str] = set()  # module or module:function
_files: dict[Path, ModuleType] = {}  # loaded from files


def allow(name: str) -> None:
    """Allow recipes to import a module and to make networks by its functions, for the rest of this process.

    Args:
        name: A module, or one function of it as module:function.
    """
    _allowed.add(name)


def allow_file(path: Path, module: ModuleType) -> None:
    """Allow the functions of a loaded file; its names are the ends of its path: a/b.py is b and a.b."""
    _files[path.parent if path.stem == "__init__" else path.with_suffix("")] = module


def file_module(where: str) -> ModuleType | None:
    """Return the module of this name that was loaded from a file, if one was."""
    parts = tuple(where.split("."))
    loaded = (module for path, module in reversed(_files.items()) if path.parts[-len(parts) :] == parts)
    return next(loaded, None)


def import_allowed(name: str) -> ModuleType:
    """Import a module that the user named; it may be in the current folder."""
    if (here := os.getcwd()) not in sys.path:  # as `python -m` does
        sys.path.insert(0, here)
    return importlib.import_module(name)


def call(name: str, wanted: dict[str, Any], needed: dict[str, str]) -> Any:
    """Return what module:function returns.

    Args:
        name: module:function, which must be allowed.
        wanted: Arguments that it gets where it has parameters of these names; num_classes also by **kwargs.
        needed: What to do about an argument that it must have and has not, by name.
    """
    function = _function(name)
    try:
        found = inspect.signature(function).parameters
    except (TypeError, ValueError):  # of some built-in callables
        found = MappingProxyType({})
    parameters = set(found)
    if any(each.kind is each.VAR_KEYWORD for each in found.values()):
        parameters.add("num_classes")
    for argument, remedy in needed.items():
        if argument not in parameters:
            raise UserError(f"it takes no argument {argument}; {remedy}")
    try:
        return function(**{argument: value for argument, value in wanted.items() if argument in parameters})
    except Exception as error:
        raise UserError(f"it fails with {type(error).__name__}: {first_line(error)}; correct it") from error


def _function(name: str) -> Callable[..., Any]:
    where, _, attribute = name.partition(":")
    function = getattr(_module(name, where), attribute, None)
    if not callable(function):
        raise UserError(f"module '{where}' has no function '{attribute}'; correct the name")
    return function  # type: ignore[no-any-return]


def _module(name: str, where: str) -> ModuleType:
    if loaded := file_module(where):
        return loaded
    if not {name, where} & _allowed:
        raise UserError(
            f"the recipe would run code of module '{where}'; if you trust it, give --plugin {where} or its file, "
            f"or in Python call mixmo.surgery.user_models.allow('{where}')"
        )
    try:
        return import_allowed(where)
    except Exception as error:
        problem = f"{type(error).__name__}: {first_line(error)}"
        raise UserError(
            f"module '{where}' cannot be imported ({problem}); correct it, or start in its folder"
        ) from error
