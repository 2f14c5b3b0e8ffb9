"""Unpack an archive that is not trusted: nothing outside its folder, no links, no decompression bombs."""

import gzip
import lzma
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from mixmo.storage.files import staging_folder
from mixmo.utils.errors import UserError, first_line, quoted
from mixmo.utils.progress import Bytes

AGAIN = "nothing was unpacked: delete it and download it again"
DAMAGED = (
    *(tarfile.TarError, gzip.BadGzipFile, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError),
    *(OverflowError, ValueError),  # of numbers in headers
)
GZIP = b"\x1f\x8b"
BLOCKS = 4096  # bytes of a tar archive per member, besides its content: its headers and what fills the last block
HEADER = 1 << 18  # bytes that tarfile may read at once: contents are read in smaller parts, headers at once


def unpack(archive: Path, folder: Path, members: int, size: int) -> None:
    """Unpack the .tar, .tar.gz or .zip `archive`, whose top folder has the name of `folder`: completely or not at all.

    At most `members` members and `size` bytes are unpacked, whatever the archive declares.
    """
    with staging_folder(folder) as fresh:
        inner = fresh / folder.name
        try:
            _unpack_all(archive, fresh, members, size)
        except UserError:
            raise
        except DAMAGED as error:
            raise UserError(f"{archive} is damaged ({first_line(error)}); {AGAIN}") from None
        if not inner.is_dir():
            raise UserError(f"{archive} does not hold the folder {folder.name}; {AGAIN}")
        inner.rename(folder)


def _unpack_all(archive: Path, to: Path, members: int, size: int) -> None:
    unpacked = 0
    doing = f"unpacking {archive.name.removesuffix('.part')}"
    with (
        archive.open("rb") as file,
        Bytes(doing, archive.stat().st_size) as work,
    ):
        limit = size + (members + 8) * BLOCKS
        found = _zip(archive, file, to) if ".zip" in archive.suffixes else _tar(archive, file, to, limit)
        for count, (name, more, place) in enumerate(found, 1):
            unpacked += more
            work.advance(place - work.done)
            if count > members or unpacked > size:
                raise UserError(f"{archive}: {quoted(name)} exceeds {members:,} members and {size:,} bytes; {AGAIN}")


def _tar(archive: Path, opened: BinaryIO, to: Path, limit: int) -> Iterator[tuple[str, int, int]]:
    """Yield each member's name, size and place in the archive BEFORE it is unpacked, when the next one is requested."""
    compressed = opened.read(len(GZIP)) == GZIP
    opened.seek(0)
    inside = _Limited(archive, gzip.GzipFile(fileobj=opened) if compressed else opened, limit)
    with tarfile.open(fileobj=inside, mode="r:") as tar:  # type: ignore[call-overload]
        for member in tar:
            _inside(archive, member.name, plain=member.isreg() or member.isdir())
            yield member.name, member.size, opened.tell()
            tar.extract(member, to, filter="data")


class _Limited:
    """A file of which at most `limit` bytes are read: tarfile reads a header into memory, whatever its size."""

    def __init__(self, archive: Path, file: BinaryIO | gzip.GzipFile, limit: int) -> None:
        self.archive, self.file, self.limit = archive, file, limit
        self.tell = file.tell

    def read(self, size: int) -> bytes:
        self._check(self.tell() + size, size)
        return self.file.read(size)

    def seek(self, place: int) -> int:
        self._check(place)
        return self.file.seek(place)

    def _check(self, end: int, size: int = 0) -> None:
        if end > self.limit or size > HEADER:
            raise UserError(
                f"{self.archive} exceeds {self.limit:,} bytes, or has a header of more than {HEADER:,}; {AGAIN}"
            )


def _zip(archive: Path, opened: BinaryIO, to: Path) -> Iterator[tuple[str, int, int]]:
    """As `_tar`. A member cannot have more bytes than it declares: zipfile stops there."""
    with zipfile.ZipFile(opened) as file:
        for member in file.infolist():
            kind = stat.S_IFMT(member.external_attr >> 16)
            _inside(archive, member.filename, plain=kind in (0, stat.S_IFREG, stat.S_IFDIR))
            yield member.filename, member.file_size, member.header_offset
            file.extract(member, to)


def _inside(archive: Path, name: str, plain: bool) -> None:
    path = PurePosixPath(name.replace("\\", "/"))
    if not name or path.is_absolute() or ".." in path.parts or ":" in name or not plain:
        raise UserError(f"{archive}: {quoted(name)} would leave the folder, or is a link or a device; {AGAIN}")
