"""Check files of torch.save before torch.load reads them.

With weights_only, torch.load runs no code. Yet a key of nested tuples makes it hang or crash, as do a set or dict of
integers with the same hash; a storage may claim more bytes than the file holds, as may a `bytearray(2**40)`; and all
members of an archive may be the same bytes.
"""

import zipfile
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

import torch

from mixmo.storage.pickle_machine import ForbiddenError, Machine, check_keys

ZIP = b"PK\x03\x04"
PARTS = 5  # pickles of a file of torch before 1.6: a number, the version, the system, the content, the storages' keys
GUARDED = ("torch", "builtins", "collections", "_codecs")  # modules of what torch.load may call by default
REBUILD = "torch._utils._rebuild_"
HARMLESS = {
    *(f"{REBUILD}{kind}" for kind in ("tensor", "tensor_v2", "tensor_v3", "parameter", "parameter_with_state")),
    *(f"{REBUILD}{kind}" for kind in ("qtensor", "sparse_tensor", "meta_tensor_no_storage")),
    *("torch.nn.parameter.Parameter", "torch.serialization._get_layout", "torch.Size", "torch.device"),
    "builtins.complex",
}
ENCODINGS = ("latin1", "latin-1", "utf-8", "ascii")  # those of bytes; the time of others is not proportional
BYTES = {name: kind.itemsize for kind, name in torch.storage._dtype_to_storage_type_map().items()}  # of an element


def check_torch_file(path: Path) -> None:
    """Raise an exception unless torch.load reads the file in time and memory proportional to its size."""
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
        stored = _Storages(len(data))
        if data[: len(ZIP)] == ZIP:
            with zipfile.ZipFile(file) as archive:
                _check_members(archive.infolist(), len(data))
            content = torch._C.PyTorchFileReader(str(path)).get_record("data.pkl")  # as torch.load finds it
            Machine(content, _Called, stored, integers=True).load()
        else:
            machine = Machine(data, _Called, stored, integers=True)
            for _ in range(PARTS):
                machine.load()


class _Called:
    """Stands for a function that a file names: its arguments are checked. Whether to call it, torch.load decides."""

    def __init__(self, name: str) -> None:
        self.name = name.replace("__builtin__.", "builtins.")  # as Python 2 names it

    def __call__(self, *arguments: Any) -> object:
        """Raise an error if the call may hang, or take more memory than the file."""
        if self.name in ("collections.OrderedDict", "collections.Counter", "builtins.set"):
            check_keys(_keys(self.name, arguments), integers=True)
        elif self.name in ("_codecs.encode", "builtins.bytearray"):
            text, *encoding = arguments or (b"",)
            if not isinstance(text, str | bytes) or any(each not in ENCODINGS for each in encoding):
                raise ForbiddenError(f"the arguments of {self.name}")
            return b""
        elif self.name == "torch._tensor._rebuild_from_type_v2":  # calls another function
            function, _, inner, _ = arguments
            function.call(*inner)
        elif self.name.partition(".")[0] in GUARDED and self.name not in HARMLESS:
            raise ForbiddenError(f"calling {self.name}")
        return {}


def _keys(name: str, arguments: tuple[Any, ...]) -> list[Any]:
    """Return what is hashed in such a call: the items of a set, or the keys of pairs, as Python 2 wrote them."""
    if not arguments or isinstance(arguments[0], dict):  # whose keys are checked
        return []
    (items,) = arguments
    return list(items) if name == "builtins.set" else [key for key, _ in items]


class _Storages:
    """Counts the bytes of the storages that a file claims to hold: `limit` in all."""

    def __init__(self, limit: int) -> None:
        self.room, self.sizes = limit, dict[object, int]()

    def __call__(self, identifier: Any) -> None:
        """Count ("storage", its type, its key, the device, its elements, ...); views of a storage share its key."""
        _, kind, key, _, elements = identifier[:5]
        check_keys([key], integers=True)
        size = elements * BYTES.get(kind.call.name.rpartition(".")[2], 1)
        self.room -= max(0, size - self.sizes.get(key, 0))
        self.sizes[key] = max(size, self.sizes.get(key, 0))
        if elements < 0 or self.room < 0:
            raise ForbiddenError("storages that are larger than the file")


def _check_members(members: list[zipfile.ZipInfo], size: int) -> None:
    if any(member.compress_type != zipfile.ZIP_STORED for member in members):
        raise ForbiddenError("compression")
    if sum(member.file_size for member in members) > size:
        raise ForbiddenError("members that are larger than the file")
