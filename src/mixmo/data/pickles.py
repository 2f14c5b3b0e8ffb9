"""Read a pickled dict of arrays, lists, strings and numbers without executing code from the pickle.

A pickle is a program: it may name any function of any module and call it. Here the few names that a numpy array needs
stand for the functions below, every other name is an error, and numpy itself is only called with checked values.
"""

import math
import re
from collections.abc import Callable
from mmap import ACCESS_READ, mmap
from pathlib import Path

import numpy as np

from mixmo.storage.pickle_machine import ForbiddenError, Machine
from mixmo.utils.errors import UserError, first_line

LARGEST = 1 << 28  # bytes; the largest CIFAR file has 155 MB
NUMERIC = re.compile(r"[<>|=]?(b1|[iu][1248]|f[248])")


def read(path: Path, remedy: str) -> dict[str, object]:
    """Return the dict pickled in `path`, keys as strings; `remedy` ends the error when it holds anything else."""
    try:
        with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
            if len(data) > LARGEST:
                raise ValueError(f"more than {LARGEST:,} bytes")
            machine = Machine(data, _NAMES.__getitem__)
            thing = machine.load()
            if not isinstance(thing, dict) or machine.place < len(data):
                raise ValueError("no dict, or bytes that follow it")
            return {text(key): value.array if isinstance(value, _Array) else value for key, value in thing.items()}
    except Exception as error:  # a damaged pickle is a damaged program and can raise nearly anything
        raise UserError(f"{path} is missing, truncated, damaged or unsafe ({first_line(error)}); {remedy}") from None


def text(value: object) -> str:
    """Return a string, which Python 2 pickled as bytes.

    >>> text(b"data"), text("data")
    ('data', 'data')
    """
    return value.decode("latin1") if isinstance(value, bytes) else str(value)


class _DType:
    """Stands for numpy.dtype: a plain number type."""

    __slots__ = ("code",)

    def __init__(self, code: object, *_: object) -> None:
        self.code = _checked_text(code)

    def build(self, state: tuple[object, ...]) -> None:
        self.code = _checked_text(state[1]) + self.code.lstrip("<>|=")  # (version, byte order, ...)

    def dtype(self) -> np.dtype:
        if not NUMERIC.fullmatch(self.code):
            raise ForbiddenError(f"an array of {self.code}")
        return np.dtype(self.code)


class _Array:
    """Stands for numpy.ndarray: a read-only view of the bytes in the pickle."""

    __slots__ = ("array",)

    def __init__(self, *_: object) -> None:
        pass

    def build(self, state: tuple[object, ...]) -> None:
        shape, kind, fortran, data = state[-4:]  # a version number may come first
        if not isinstance(shape, tuple) or not all(type(side) is int and 0 <= side <= LARGEST for side in shape):
            raise TypeError("an array without shape")
        if not isinstance(kind, _DType) or len(shape) > 8:
            raise TypeError("an array without type")
        dtype = kind.dtype()
        if not isinstance(data, bytes) or math.prod(shape) * dtype.itemsize != len(data):
            raise ValueError(f"the data of an array of shape {shape} has another size")
        self.array = np.frombuffer(data, dtype).reshape(shape, order="F" if fortran else "C")


def _scalar(kind: object, data: object) -> object:
    if not isinstance(kind, _DType) or not isinstance(data, bytes):
        raise TypeError("a number without type or data")
    (number,) = np.frombuffer(data, kind.dtype()).tolist()
    return number


def _encode(string: object, encoding: object = "latin1") -> bytes:
    if not isinstance(string, str) or encoding not in ("latin1", "latin-1"):
        raise ForbiddenError(f"encoding {_checked_text(encoding)}")
    return string.encode("latin1")


def _checked_text(value: object) -> str:
    if not isinstance(value, str | bytes):
        raise TypeError("a name that is no text")
    return text(value)[:20]


_NAMES: dict[str, Callable[..., object]] = {
    "numpy.ndarray": _Array,
    "numpy.dtype": _DType,
    "numpy.core.multiarray._reconstruct": _Array,
    "numpy._core.multiarray._reconstruct": _Array,
    "numpy.core.multiarray.scalar": _scalar,
    "numpy._core.multiarray.scalar": _scalar,
    "_codecs.encode": _encode,  # how Python 3 writes bytes with protocol 2
}
