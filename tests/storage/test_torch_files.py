"""Files of torch.save are checked before torch.load reads them: none takes time or memory beyond its size."""

import io
import struct
import zipfile
import zlib
from collections import Counter, OrderedDict
from pathlib import Path

import pytest
import torch

from helpers import limited
from mixmo.surgery.weight_files import read_weights
from mixmo.utils.errors import UserError

SAME_HASH = 2**61 - 1  # of all its multiples


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def integer(value: int) -> bytes:
    return b"\x8a\x0b" + value.to_bytes(11, "little")


def call(name: bytes, arguments: bytes) -> bytes:
    return b"c" + name + b"\n" + arguments + b"R"


def tensor(key: str, elements: int, kind: bytes = b"FloatStorage") -> bytes:
    count = integer(elements)
    storage = b"(" + text("storage") + b"ctorch\n" + kind + b"\n" + text(key) + text("cpu") + count + b"tQ"
    return call(b"torch._utils\n_rebuild_tensor_v2", b"(" + storage + b"K\0" + count + b"\x85K\1\x85\x89}t")


def state(value: bytes) -> bytes:
    return b"\x80\x02}(" + text("w") + value + b"u."


def archive(path: Path, content: bytes, copies: int = 0, data: bytes = b"\0\0\0\0") -> Path:
    """Write a file as torch.save does; the directory lists its only storage `copies` times more."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as file:
        for name, inside in (("data.pkl", content), ("version", b"3\n"), ("byteorder", b"little"), ("data/0", data)):
            file.writestr(f"archive/{name}", inside)
        last = file.infolist()[-1]
        for key in range(1, copies + 1):
            again = zipfile.ZipInfo(f"archive/data/{key}")
            again.header_offset, again.CRC = last.header_offset, zlib.crc32(data)
            again.file_size = again.compress_size = len(data)
            file.filelist.append(again)
            file.NameToInfo[again.filename] = again
    path.write_bytes(made.getvalue())
    return path


COLLIDING = [integer(SAME_HASH * i) for i in range(1, 30_001)]
PAIRS = b"](" + b"".join(number + b"N\x86" for number in COLLIDING) + b"e"
ITEMS = b"](" + b"".join(COLLIDING) + b"e"
HUNG = {
    "a dict": b"}(" + b"".join(number + b"N" for number in COLLIDING) + b"u",
    "an OrderedDict": call(b"collections\nOrderedDict", PAIRS + b"\x85"),
    "a set": call(b"__builtin__\nset", ITEMS + b"\x85"),
    "attributes": call(b"collections\nOrderedDict", b")") + PAIRS + b"b",
}


@pytest.mark.parametrize("content", HUNG.values(), ids=HUNG)
def test_integers_with_the_same_hash_are_an_error_at_once(tmp_path: Path, content: bytes):
    """A dict or set of them is quadratic: 30,000 took ten seconds, in which SIGTERM was ignored."""
    path = archive(tmp_path / "w.pt", state(content))
    with limited(), pytest.raises(UserError, match=r"cannot be read safely \((a key that is|changing a dict)"):
        read_weights(path, ["w"])


LARGE = {
    "bytes": call(b"__builtin__\nbytearray", integer(2**40) + b"\x85"),
    "a tensor": call(b"torch\nTensor", integer(2**40) + b"\x85"),
    "a storage": call(b"torch.storage\nUntypedStorage", integer(2**40) + b"\x85"),
    "a tensor made indirectly": call(
        b"torch._tensor\n_rebuild_from_type_v2", b"(ctorch\nTensor\nctorch\nTensor\n" + integer(2**40) + b"\x85}t"
    ),
    "elements of more bytes than the file": tensor("0", 200, b"ComplexDoubleStorage"),
}


@pytest.mark.parametrize("content", LARGE.values(), ids=LARGE)
def test_what_is_larger_than_the_file_is_an_error_before_it_is_made(tmp_path: Path, content: bytes):
    with limited(), pytest.raises(UserError, match=r"calling torch|the arguments of|larger than the file"):
        read_weights(archive(tmp_path / "w.pt", state(content)), ["w"])


def test_members_that_share_their_bytes_are_an_error(tmp_path: Path):
    """A file of 1.4 MB took 1.9 GB: its directory listed the same bytes again and again."""
    path = archive(tmp_path / "w.pt", state(tensor("0", 250_000)), copies=3, data=bytes(1_000_000))
    with pytest.raises(UserError, match="members that are larger than the file"):
        read_weights(path, ["w"])


def test_storages_of_the_old_format_are_counted_together(tmp_path: Path):
    path = tmp_path / "old.pth"
    torch.save({"w": torch.ones(1000), "v": torch.ones(1000)}, path, _use_new_zipfile_serialization=False)
    content = path.read_bytes()
    count = b"M" + struct.pack("<H", 1000)
    assert content.count(count) >= 2
    path.write_bytes(content.replace(count, b"M" + struct.pack("<H", len(content) // 4)))  # each fits, both do not
    with pytest.raises(UserError, match="storages that are larger than the file"):
        read_weights(path, ["w"])


@pytest.mark.parametrize("new", [True, False], ids=["zip", "old"])
def test_checkpoints_of_training_scripts_are_read(tmp_path: Path, new: bool):
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
    shared = torch.arange(6.0)
    optimizer = torch.optim.AdamW(net.parameters())
    net(torch.ones(2, 3, 8, 8)).sum().backward()
    optimizer.step()
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 5, 5])
    views = {"a": shared[:3], "b": shared[3:], "half": shared.half(), "parameter": torch.nn.Parameter(shared)}
    whole = {
        "state_dict": OrderedDict({**net.state_dict(), **views, "sparse": torch.eye(3).to_sparse()}),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "others": [
            {1, "a"},
            Counter("aab"),
            bytearray(b"a"),
            b"a",
            torch.Size([3]),
            torch.float16,
            1j,
            torch.device("cpu"),
        ],
    }
    torch.save(whole, tmp_path / "w.pt", _use_new_zipfile_serialization=new)
    read = read_weights(tmp_path / "w.pt", ["0.weight"])
    assert read.keys() == whole["state_dict"].keys()
    assert all(torch.equal(read[name].to_dense(), whole["state_dict"][name].to_dense()) for name in read)


def test_the_pairs_of_an_ordered_dict_of_python_2_are_read(tmp_path: Path):
    pairs = b"](](" + text("w") + tensor("0", 1) + b"ee\x85"
    content = b"\x80\x02" + call(b"collections\nOrderedDict", pairs) + b"."
    assert read_weights(archive(tmp_path / "w.pt", content), ["w"])["w"].tolist() == [0.0]
