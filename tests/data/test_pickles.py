"""The restricted unpickler: reads what numpy wrote, executes nothing."""

import collections
import contextlib
import os
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies

from helpers import limited
from mixmo.data import pickles
from mixmo.storage import pickle_machine
from mixmo.storage.pickle_machine import Machine
from mixmo.utils.errors import UserError


def write(path: Path, thing: object, protocol: int = 2) -> Path:
    path.write_bytes(pickle.dumps(thing, protocol=protocol))
    return path


@pytest.mark.parametrize("protocol", [2, 3, 4])
@pytest.mark.parametrize("kind", ["u1", "<i4", ">i8", "<f4", "f8", "?"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_of_numbers_are_read(tmp_path: Path, protocol: int, kind: str, order: str):
    array = np.asarray(np.arange(24).reshape(2, 3, 4) % 7, dtype=kind, order=order)
    read = pickles.read(write(tmp_path / "a", {"data": array, b"n": 3}, protocol), "so")
    assert read["n"] == 3
    assert isinstance(read["data"], np.ndarray)
    assert read["data"].dtype == array.dtype
    assert np.array_equal(read["data"], array)


def test_lists_strings_numbers_and_scalars_are_read(tmp_path: Path):
    thing = {b"names": [b"caf\xe9", "apple"], "labels": [1, np.int64(2), np.uint8(3)], "x": [1.5, None, True, (1, {})]}
    read = pickles.read(write(tmp_path / "a", thing), "so")
    assert [pickles.text(name) for name in read["names"]] == ["café", "apple"]
    assert read["labels"] == [1, 2, 3]
    assert read["x"] == [1.5, None, True, (1, {})]


def test_python_2_strings_are_bytes(tmp_path: Path):
    path = tmp_path / "a"
    path.write_bytes(b"\x80\x02}U\x05namesq\x00]U\x05appleas.")  # str keys and values of Python 2 are bytes
    assert pickles.read(path, "so") == {"names": [b"apple"]}


MARKER = Path("/tmp/mixmo-a-pickle-ran-code")


class Runs:
    def __reduce__(self) -> tuple[object, ...]:
        return os.system, (f"touch {MARKER}",)


def global_call(module: str, name: str, argument: bytes = b"U\x01xq\x00\x85R") -> bytes:
    return b"\x80\x02}U\x04data" + f"c{module}\n{name}\n".encode() + argument + b"s."


@pytest.mark.parametrize(
    ("content", "asked"),
    [
        (pickle.dumps({"data": Runs()}, 2), "system"),
        (pickle.dumps({"data": Runs()}, 4), "system"),
        (pickle.dumps({"data": collections.OrderedDict()}, 2), "collections.OrderedDict"),
        (global_call("builtins", "eval"), "builtins.eval"),
        (global_call("__builtin__", "eval"), "__builtin__.eval"),
        (global_call("numpy", "load"), "numpy.load"),
        (global_call("numpy", "ndarray.tofile"), "numpy.ndarray.tofile"),
        (global_call("numpy.core.multiarray", "fromfile"), "numpy.core.multiarray.fromfile"),
        (global_call("_codecs", "lookup"), "_codecs.lookup"),
        (b"\x80\x02}U\x04data(ios\nsystem\ns.", "operation 0x69"),  # the INST opcode
        (b"\x80\x02}U\x04datac_codecs\nencode\n}U\x05_callNsbs.", "changing a Name"),  # BUILD on a function
        (pickle.dumps({"data": np.array([{}], dtype=object)}, 2), "an array of |O"),
        (global_call("_codecs", "encode", b"X\x01\x00\x00\x00xX\x05\x00\x00\x00rot13\x86R"), "encoding rot13"),
    ],
)
def test_a_pickle_that_calls_other_functions_is_rejected(tmp_path: Path, content: bytes, asked: str):
    path = tmp_path / "train"
    path.write_bytes(content)
    with pytest.raises(UserError, match=re.escape(asked)):
        pickles.read(path, "download it")
    assert not MARKER.exists()


def test_a_rejected_pickle_does_not_change_the_reader(tmp_path: Path):
    bad = tmp_path / "bad"
    bad.write_bytes(b"\x80\x02}U\x04datac_codecs\nencode\nN}U\x05_callNs\x86bs.")  # slot state: would set _call
    with pytest.raises(UserError):
        pickles.read(bad, "so")
    assert pickles.read(write(tmp_path / "good", {b"a": b"\xff"}), "so") == {"a": b"\xff"}


def doubled(times: int) -> bytes:
    """A tuple of two equal tuples of two equal tuples, and so on: few bytes, 2^times values."""
    return b"K\x01\x85" + b"".join(b"q" + bytes([i]) + b"h" + bytes([i]) + b"\x86" for i in range(times))


def array_of_shape(shape: bytes) -> bytes:
    named = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01"
    return b"\x80\x02}U\x04data" + named + shape + b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R\x89U\x00tbs."


LARGE_NUMBER = b"\x8a\xff" + b"\x7f" * 255
BOMBS = {  # each hangs, kills or fills the memory of pickle.Unpickler
    "a key of nested tuples": (b"\x80\x02}(" + doubled(40) + b"K\x00u.", "key"),
    "a key of deep tuples": (b"\x80\x02}K\x01" + b"\x85" * 200_000 + b"K\x00s.", "key"),
    "keys with the same hash": (
        b"\x80\x02}("
        + b"".join(b"\x8a\x0b" + ((2**61 - 1) * i).to_bytes(11, "little") + b"N" for i in range(50_000))
        + b"u.",
        "a key that is no string",
    ),
    "a large place in the memo": (b"\x80\x02}r\xff\xff\xff\x7f.", None),
    "a shape of large numbers": (array_of_shape(b"(" + LARGE_NUMBER + b"q\x00" + b"h\x00" * 30_000 + b"t"), "shape"),
    "text that is encoded often": (
        b"\x80\x02}U\x01ac_codecs\nencode\nq\x00X\x00\x00\x10\x00"
        + bytes(2**20)
        + b"\x85q\x01R0"
        + b"h\x00h\x01R" * 900,
        "bytes in memory",
    ),
    "a string that is longer than the file": (b"\x80\x02}T\xff\xff\xff\x7f.", "early"),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_takes_no_time_and_no_memory(tmp_path: Path, bomb: str):
    (tmp_path / "train").write_bytes(BOMBS[bomb][0])
    with limited(), pytest.raises(UserError, match=BOMBS[bomb][1]) if BOMBS[bomb][1] else contextlib.nullcontext():
        pickles.read(tmp_path / "train", "download it")


def test_the_memory_of_many_small_objects_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pickle_machine, "BUDGET", 2**20)
    (tmp_path / "train").write_bytes(b"\x80\x02}U\x01a(" + b"]" * 10_000 + b"es.")
    with pytest.raises(UserError, match="1,048,576 bytes in memory"):
        pickles.read(tmp_path / "train", "download it")


KEYS = strategies.text(max_size=4) | strategies.binary(max_size=4) | strategies.integers(0, 2**31 - 1)
VALUES = KEYS | strategies.integers() | strategies.none() | strategies.booleans() | strategies.floats(allow_nan=False)
NESTED = strategies.recursive(
    VALUES,
    lambda inner: (
        strategies.lists(inner, max_size=4)
        | strategies.tuples(inner, inner)
        | strategies.dictionaries(KEYS, inner, max_size=4)
    ),
    max_leaves=8,
)


@settings(max_examples=30, deadline=None, database=None)
@given(strategies.dictionaries(KEYS, NESTED, max_size=4), strategies.sampled_from([3, 4]))
def test_plain_values_are_what_pickle_reads(thing: dict[str | bytes, object], protocol: int):
    machine = Machine(pickle.dumps(thing, protocol), lambda _: lambda text, _: text.encode("latin1"), integers=True)
    assert machine.load() == thing


GOOD = pickle.dumps({"data": np.arange(1000, dtype=np.uint8), "labels": list(range(300))}, 2)


@pytest.mark.parametrize("length", [0, 1, 2, 10, 60, len(GOOD) // 2, len(GOOD) - 1])
def test_a_truncated_pickle_is_an_error(tmp_path: Path, length: int):
    path = tmp_path / "train"
    path.write_bytes(GOOD[:length])
    with pytest.raises(UserError, match="truncated"):
        pickles.read(path, "download it")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (GOOD + b"x", "bytes"),
        (pickle.dumps([1, 2], 2), "dict"),
        (b"\x89PNG\r\n\x1a\n" + bytes(100), "truncated"),
        (b"P" + bytes(100), "truncated"),
        (GOOD.replace(b"M\xe8\x03\x85", b"M\xe7\x03\x85"), "size"),
        (b"\x80\x02}U\x04datacnumpy\nndarray\n)RU\x01xbs.", "truncated"),  # the array's state is a string
        (b"\x80\x02}U\x04datacnumpy\ndtype\n)Rs.", "truncated"),
    ],
)
def test_a_damaged_pickle_is_an_error(tmp_path: Path, content: bytes, problem: str):
    path = tmp_path / "train"
    path.write_bytes(content)
    with pytest.raises(UserError, match=re.escape(problem)):
        pickles.read(path, "download it")


def test_random_damage_gives_a_dict_or_a_user_error(tmp_path: Path):
    """Whatever one flips in a file, reading ends in a dict or in a UserError."""
    draw = np.random.default_rng(0)
    path = tmp_path / "train"
    for _ in range(300):
        content = bytearray(GOOD)
        for _ in range(3):
            content[draw.integers(200)] = draw.integers(256)
        path.write_bytes(content)
        with contextlib.suppress(UserError):
            assert isinstance(pickles.read(path, "so"), dict)


def test_a_far_too_large_file_is_rejected(tmp_path: Path):
    path = tmp_path / "train"
    with path.open("wb") as file:
        file.truncate(pickles.LARGEST + 1)  # sparse: takes no room
    with pytest.raises(UserError, match="bytes"):
        pickles.read(path, "download it")
