"""Read a pickled dict of arrays, lists, strings and numbers without executing code from the pickle.

A pickle is a program: it may name any function of any module and call it. Here the few names that a numpy array needs
stand for the inert functions below, every other name is an error, and numpy itself is only called with checked values.
"""

import math
import pickle
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np

from mixmo.utils.errors import UserError, first_line

LARGEST = 1 << 30  # bytes; the largest CIFAR file has 155 MB
NUMERIC = re.compile(r"[<>|=]?(b1|[iu][1248]|f[248])")


def read(path: Path, remedy: str) -> dict[str, object]:
    """Return the dict pickled in `path`, keys as strings; `remedy` ends the error when it holds anything else."""
    try:
        with path.open("rb") as file:
            if path.stat().st_size > LARGEST:
                raise ValueError(f"more than {LARGEST:,} bytes")
            thing = _Restricted(file, encoding="bytes").load()
            if not isinstance(thing, dict) or file.read(1):
                raise ValueError("no dict, or bytes that follow it")
    except Exception as error:  # a damaged pickle is a damaged program and can raise nearly anything
        raise UserError(f"{path} is missing, truncated, damaged or unsafe ({first_line(error)}); {remedy}") from None
    return {text(key): value.array if isinstance(value, _Array) else value for key, value in thing.items()}


def text(value: object) -> str:
    """Return a string, which Python 2 pickled as bytes.

    >>> text(b"data"), text("data")
    ('data', 'data')
    """
    return value.decode("latin1") if isinstance(value, bytes) else str(value)


class _ForbiddenError(Exception):
    pass


class _Inert:
    """What a name in a pickle stands for: a function whose attributes the pickle cannot set."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[..., object]) -> None:
        self._call = call

    def __call__(self, *arguments: object) -> object:
        return self._call(*arguments)

    def __setstate__(self, state: object) -> None:
        raise _ForbiddenError("changing a function")


class _DType:
    """Stands for numpy.dtype: a plain number type."""

    __slots__ = ("code",)

    def __init__(self, code: object, *_: object) -> None:
        self.code = text(code)

    def __setstate__(self, state: tuple[object, ...]) -> None:
        self.code = text(state[1]) + self.code.lstrip("<>|=")  # (version, byte order, ...)

    def dtype(self) -> np.dtype:
        if not NUMERIC.fullmatch(self.code):
            raise _ForbiddenError(f"an array of {self.code}")
        return np.dtype(self.code)


class _Array:
    """Stands for numpy.ndarray: a read-only view of the bytes in the pickle."""

    __slots__ = ("array",)

    def __setstate__(self, state: tuple[object, ...]) -> None:
        shape, kind, fortran, data = state[-4:]  # a version number may come first
        if not (isinstance(shape, tuple) and isinstance(kind, _DType)):
            raise TypeError("an array without shape or type")
        dtype = kind.dtype()
        if not isinstance(data, bytes) or math.prod(shape) * dtype.itemsize != len(data):
            raise ValueError(f"the data of an array of shape {shape} has another size")
        self.array = np.frombuffer(data, dtype).reshape(shape, order="F" if fortran else "C")


def _reconstruct(*_: object) -> _Array:
    return _Array()


def _scalar(kind: _DType, data: bytes) -> object:
    (number,) = np.frombuffer(data, kind.dtype()).tolist()
    return number


def _encode(string: str, encoding: object = "latin1") -> bytes:
    if text(encoding) not in ("latin1", "latin-1"):
        raise _ForbiddenError(f"encoding {text(encoding)}")
    return string.encode("latin1")


_NAMES = {
    "numpy.ndarray": _Inert(_reconstruct),
    "numpy.dtype": _Inert(_DType),
    "numpy.core.multiarray._reconstruct": _Inert(_reconstruct),
    "numpy._core.multiarray._reconstruct": _Inert(_reconstruct),
    "numpy.core.multiarray.scalar": _Inert(_scalar),
    "numpy._core.multiarray.scalar": _Inert(_scalar),
    "_codecs.encode": _Inert(_encode),  # how Python 3 writes bytes with protocol 2
}


class _Restricted(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> object:
        if f"{module}.{name}" not in _NAMES:
            raise _ForbiddenError(f"{module}.{name}")
        return _NAMES[f"{module}.{name}"]
