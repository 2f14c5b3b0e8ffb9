"""The choice between cuDNN and the Triton kernels, with a clock of the tests, and its memory on disk."""

import threading
from pathlib import Path

import pytest
import torch
from torch import Tensor

from mixmo.kernels import remembered
from mixmo.kernels.choice import Call, Choice, compile_together, fastest, worthwhile
from mixmo.kernels.ops import CUDNN
from mixmo.kernels.remembered import name_of, recall, remember
from mixmo.kernels.shapes import Shape

RIGHT = torch.arange(1.0, 9.0).bfloat16()
SHAPE = Shape(2, 8, 6, 6, 16, 1, 1)


class Fixed:
    """A call whose time is known."""

    def __init__(self, milliseconds: float, result: Tensor = RIGHT) -> None:
        self.milliseconds, self.result = milliseconds, result

    def __call__(self) -> Tensor:
        return self.result


def clock(calls: list[Call]) -> float:
    (call,) = calls
    assert isinstance(call, Fixed)
    return call.milliseconds


def failing() -> Tensor:
    raise RuntimeError("out of shared memory")


def chosen(**candidates: Call) -> Choice:
    return fastest([Fixed(1.0)], {name: [call] for name, call in candidates.items()}, clock)


def test_the_fastest_that_is_right_is_chosen() -> None:
    rounded = RIGHT * (1 + 2**-8)
    found = chosen(slow=Fixed(0.9), fast=Fixed(0.5, rounded), wrong=Fixed(0.1, RIGHT * 1.02), broken=failing)
    assert found == Choice("fast", 1.0, "fast", 0.5)
    assert found.gain_ms == 0.5


@pytest.mark.parametrize(("milliseconds", "kernel"), [(0.99, CUDNN), (0.97, "ours")])
def test_a_gain_of_less_than_two_percent_is_none(milliseconds: float, kernel: str) -> None:
    found = chosen(ours=Fixed(milliseconds))
    assert found == Choice(kernel, 1.0, "ours", milliseconds)


@pytest.mark.parametrize("result", [RIGHT * float("nan"), RIGHT * 0, -RIGHT])
def test_what_is_wrong_is_never_chosen(result: Tensor) -> None:
    assert chosen(ours=Fixed(0.1, result), broken=failing) == Choice(CUDNN, 1.0)


def test_candidates_are_compiled_at_the_same_time() -> None:
    met = []
    barrier = threading.Barrier(2, timeout=60)

    def call() -> Tensor:
        met.append(barrier.wait())
        return RIGHT

    compile_together([call, failing, call])
    assert sorted(met) == [0, 1]


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "mixmo" / "kernels.json"


ONE, TWO = {"a": Choice("x", 1.0, "x", 0.5)}, {"b": Choice(CUDNN, 2.0)}


def test_choices_are_remembered_for_one_environment(memory: Path) -> None:
    assert recall("H200, Triton 3.6") == {}
    remember("H200, Triton 3.6", ONE)
    remember("H200, Triton 3.6", TWO)
    remember("H200, Triton 3.7", TWO)
    assert recall("H200, Triton 3.6") == ONE | TWO
    assert recall("H200, Triton 3.7") == TWO
    assert recall("A100, Triton 3.6") == {}


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"here": 1}', '{"here": {"a": {"kernel": "x"}}}', "\0"])
def test_a_damaged_memory_is_as_good_as_none(memory: Path, content: str) -> None:
    memory.parent.mkdir()
    memory.write_text(content)
    assert recall("here") == {}
    remember("here", ONE)
    assert recall("here") == ONE


def test_a_memory_that_cannot_be_written_is_not_missed(memory: Path) -> None:
    memory.parent.write_text("a file where the folder would be")
    remember("here", ONE)
    assert recall("here") == {}


def test_choices_depend_on_the_gpu_the_versions_and_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    device, found = torch.device("cuda"), set()
    for name, version in (("H200", "2.11"), ("A100", "2.11"), ("H200", "2.13")):
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda _, name=name: name)
        monkeypatch.setattr(torch, "__version__", version)
        found.add(remembered.environment(device))
    monkeypatch.setattr(Path, "read_bytes", lambda _: b"other kernels")
    found.add(remembered.environment(device))
    assert len(found) == 4


def test_choices_depend_on_shape_direction_and_precision() -> None:
    other = Shape(2, 8, 6, 6, 16, 1, 0)
    keys = [
        (SHAPE, "forward", torch.bfloat16),
        (other, "forward", torch.bfloat16),
        (SHAPE, "input", torch.bfloat16),
        (SHAPE, "forward", torch.float16),
    ]
    assert len({name_of(key) for key in keys}) == 4


@pytest.mark.parametrize("direction", ["forward", "input", "weight"])
def test_tiles_of_eight_warps_read_many_images_where_there_are_enough(direction: str) -> None:
    pytest.importorskip("triton")
    from mixmo.kernels.directions import DIRECTIONS

    kernel = DIRECTIONS[direction]

    def large(batch: int) -> set[bool]:
        tried = (kernel.tiles[name] for name in worthwhile(kernel, Shape(batch, 320, 16, 16, 320, 1, 1)))
        return {tile.images for tile in tried if tile.warps == 8}

    assert large(256) == {True}
    assert large(48) == {False}  # boxes of 64 or 128 images would pad
