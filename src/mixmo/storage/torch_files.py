"""Check files of torch.save before torch.load reads them.

With weights_only, torch.load runs no code. Yet a key of nested tuples makes it hang or crash, and a storage may claim
more bytes than the file holds.
"""

import zipfile
from collections.abc import Callable
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

import torch

from mixmo.storage.pickle_machine import ForbiddenError, Machine

ZIP = b"PK\x03\x04"
PARTS = 5  # pickles of a file of torch before 1.6: a number, the version, the system, the content, the storages' keys


def check_torch_file(path: Path) -> None:
    """Raise an exception unless torch.load reads the file in time and memory proportional to its size."""
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
        limit = len(data)

        def stored(identifier: Any) -> None:
            if not 0 <= identifier[4] <= limit:  # elements
                raise ForbiddenError("a storage that is larger than the file")

        if data[: len(ZIP)] == ZIP:
            with zipfile.ZipFile(file) as archive:
                if any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist()):
                    raise ForbiddenError("compression")
            content = torch._C.PyTorchFileReader(str(path)).get_record("data.pkl")  # as torch.load finds it
            Machine(content, _stand_in, stored).load()
        else:
            machine = Machine(data, _stand_in, stored)
            for _ in range(PARTS):
                machine.load()


def _stand_in(name: str) -> Callable[..., object]:
    """Return what stands for anything that a file names: torch.load decides which names it calls."""
    del name
    return lambda *_: {}
