"""Read untrusted pickles. All supported operations are in this file; none imports or calls what the pickle names.

A pickle is a program for a small machine with a stack. This one knows the operations of protocols 2 to 4 that plain
values, arrays and state dicts need. Its memory is bounded, and its keys are strings, whose hash is cheap and cannot be
chosen. That of a tuple of tuples takes for ever, or overflows the stack of the interpreter; and as many integers as one
likes have the same hash, multiples of 2^61 - 1, which makes a dict of them quadratic. Where `integers` are needed as
keys, they are small: those below 2^31 have different hashes.
"""

import struct
from collections.abc import Callable, Iterable
from mmap import mmap
from typing import Any, NamedTuple

BUDGET = 1 << 28  # bytes that what is read may take; the largest CIFAR file takes 190 MB
SMALL = 1 << 31  # an integer that is a key is below
OBJECT = 128  # bytes that an operation may take, besides the text or data that it reads
MARK = object()


class ForbiddenError(Exception):
    """The pickle uses an operation or a name that is not allowed."""


class Name(NamedTuple):
    """A function that a pickle names."""

    call: Callable[..., object]


class Machine:
    """Reads one pickle after the other.

    Args:
        data: The pickles.
        names: Returns the function that a name stands for, or raises an error.
        stored: Returns the object of a persistent id, which torch gives to the storages of tensors.
        integers: Allow small integers as keys.
    """

    def __init__(
        self,
        data: bytes | mmap,
        names: Callable[[str], Callable[..., object]],
        stored: Callable[[object], object] | None = None,
        integers: bool = False,
    ) -> None:
        self.data, self.names, self.stored, self.integers = data, names, stored, integers
        self.place, self.room = 0, BUDGET
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def load(self) -> Any:
        """Return the object of the next pickle. A damaged one can raise nearly any exception."""
        self.stack, self.memo = [], {}
        while (code := self.data[self.place]) != ord("."):
            self.place += 1
            self.spend(OBJECT)
            if code not in OPERATIONS:
                raise ForbiddenError(f"operation {code:#04x}")
            OPERATIONS[code](self)
        self.place += 1
        (value,) = self.stack
        return value

    def spend(self, size: int) -> None:
        self.room -= size
        if self.room < 0:
            raise ForbiddenError(f"more than {BUDGET:,} bytes in memory")

    def take(self, count: int) -> bytes:
        if count > len(self.data) - self.place:
            raise ValueError("it ends too early")
        self.spend(count)
        self.place += count
        return self.data[self.place - count : self.place]

    def number(self, kind: str) -> Any:
        """Return a number in the format of `struct`."""
        return struct.unpack(f"<{kind}", self.take(struct.calcsize(kind)))[0]

    def line(self) -> str:
        end = self.data.find(b"\n", self.place, self.place + 1000)
        if end < 0:
            raise ValueError("it ends too early")
        text = self.take(end - self.place).decode()
        self.place += 1
        return text

    def items(self) -> list[Any]:
        """Pop everything down to the last mark."""
        start = len(self.stack) - 1
        while self.stack[start] is not MARK:
            start -= 1
        found = self.stack[start + 1 :]
        del self.stack[start:]
        return found

    def push(self, value: object) -> None:
        self.stack.append(value)

    def tuple(self, count: int) -> None:
        if MARK in (found := self.stack[-count:]) or len(found) < count:
            raise ValueError("it ends too early")
        self.stack[-count:] = [tuple(found)]

    def extend(self, values: list[Any]) -> None:
        if not isinstance(self.stack[-1], list):
            raise TypeError("items of no list")
        self.stack[-1].extend(values)

    def update(self, pairs: list[Any]) -> None:
        keys = pairs[::2]
        if not isinstance(self.stack[-1], dict):
            raise TypeError("items of no dict")
        check_keys(keys, self.integers)
        self.stack[-1].update(zip(keys, pairs[1::2], strict=True))

    def set_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self.update([key, value])

    def append(self) -> None:
        value = self.stack.pop()
        self.extend([value])

    def put(self, place: int) -> None:
        self.memo[place] = self.stack[-1]

    def get(self, place: int) -> None:
        self.push(self.memo[place])

    def named(self, name: str) -> None:
        self.push(Name(self.names(name)))

    def named_by_stack(self) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        if not isinstance(name, str) or not isinstance(module, str):
            raise TypeError("a name that is no text")
        self.named(f"{module}.{name}")

    def call(self) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        if not isinstance(function, Name) or not isinstance(arguments, tuple):
            raise ForbiddenError("calling something that is no function")
        made = function.call(*arguments)
        self.spend(len(made) if isinstance(made, bytes) else 0)
        self.push(made)

    def build(self) -> None:
        state, thing = self.stack.pop(), self.stack[-1]
        if isinstance(thing, dict) and isinstance(state, dict):  # attributes, as state dicts have them: not needed
            return
        if not hasattr(thing, "build"):
            raise ForbiddenError(f"changing a {type(thing).__name__}")
        thing.build(state)

    def persistent(self) -> None:
        if self.stored is None:
            raise ForbiddenError("a persistent id")
        self.push(self.stored(self.stack.pop()))


def check_keys(keys: Iterable[object], integers: bool) -> None:
    """Raise an error for a key that is no string, nor, with `integers`, a small whole number."""
    for key in keys:
        if not isinstance(key, str | bytes) and not (integers and type(key) is int and 0 <= key < SMALL):
            raise ForbiddenError(f"a key that is no string{' and no small integer' if integers else ''}")


def _text(kind: str) -> Callable[[Machine], None]:
    return lambda machine: machine.push(machine.take(machine.number(kind)).decode("utf-8", "surrogatepass"))


def _bytes(kind: str) -> Callable[[Machine], None]:
    return lambda machine: machine.push(machine.take(machine.number(kind)))


def _number(kind: str) -> Callable[[Machine], None]:
    return lambda machine: machine.push(machine.number(kind))


OPERATIONS: dict[int, Callable[[Machine], None]] = {
    0x80: lambda machine: machine.number("B"),  # PROTO
    0x95: lambda machine: machine.number("Q"),  # FRAME
    ord("("): lambda machine: machine.push(MARK),
    ord("0"): lambda machine: machine.stack.pop(),
    ord("N"): lambda machine: machine.push(None),
    0x88: lambda machine: machine.push(True),
    0x89: lambda machine: machine.push(False),
    ord("J"): _number("i"),
    ord("K"): _number("B"),
    ord("M"): _number("H"),
    0x8A: lambda machine: machine.push(int.from_bytes(machine.take(machine.number("B")), "little", signed=True)),
    ord("G"): lambda machine: machine.push(struct.unpack(">d", machine.take(8))[0]),
    ord("U"): _bytes("B"),  # strings of Python 2
    ord("T"): _bytes("I"),
    ord("C"): _bytes("B"),
    ord("B"): _bytes("I"),
    0x8E: _bytes("Q"),
    0x8C: _text("B"),
    ord("X"): _text("I"),
    0x8D: _text("Q"),
    ord("]"): lambda machine: machine.push([]),
    ord("a"): Machine.append,
    ord("e"): lambda machine: machine.extend(machine.items()),
    ord(")"): lambda machine: machine.push(()),
    0x85: lambda machine: machine.tuple(1),
    0x86: lambda machine: machine.tuple(2),
    0x87: lambda machine: machine.tuple(3),
    ord("t"): lambda machine: machine.push(tuple(machine.items())),
    ord("}"): lambda machine: machine.push({}),
    ord("s"): Machine.set_item,
    ord("u"): lambda machine: machine.update(machine.items()),
    ord("q"): lambda machine: machine.put(machine.number("B")),
    ord("r"): lambda machine: machine.put(machine.number("I")),
    0x94: lambda machine: machine.put(len(machine.memo)),
    ord("h"): lambda machine: machine.get(machine.number("B")),
    ord("j"): lambda machine: machine.get(machine.number("I")),
    ord("c"): lambda machine: machine.named(f"{machine.line()}.{machine.line()}"),
    0x93: Machine.named_by_stack,
    ord("R"): Machine.call,
    0x81: Machine.call,
    ord("b"): Machine.build,
    ord("Q"): Machine.persistent,
}
