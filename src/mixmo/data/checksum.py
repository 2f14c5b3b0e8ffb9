"""The checksum that the data sets' publishers give."""

import hashlib
from pathlib import Path


def md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
