"""Unpack an archive that is not trusted: nothing outside its folder, no links, no decompression bombs."""

import gzip
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from mixmo.storage.files import staging_folder
from mixmo.utils.errors import UserError
from mixmo.utils.progress import Bytes

AGAIN = "nothing was unpacked: delete it and download it again"
DAMAGED = (tarfile.TarError, gzip.BadGzipFile, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError)


def unpack(archive: Path, folder: Path, members: int, size: int) -> None:
    """Unpack the .tar, .tar.gz or .zip `archive`, whose top folder has the name of `folder`: completely or not at all.

    At most `members` members and `size` bytes are unpacked, whatever the archive declares.
    """
    with staging_folder(folder) as fresh:
        inner = fresh / folder.name
        try:
            _unpack_all(archive, fresh, members, size)
        except DAMAGED as error:
            raise UserError(f"{archive} is damaged ({error}); {AGAIN}") from None
        if not inner.is_dir():
            raise UserError(f"{archive} does not hold the folder {folder.name}; {AGAIN}")
        inner.rename(folder)


def _unpack_all(archive: Path, to: Path, members: int, size: int) -> None:
    unpacked = 0
    unpacker = _zip if ".zip" in archive.suffixes else _tar
    doing = f"unpacking {archive.name.removesuffix('.part')}"
    with (
        archive.open("rb") as file,
        Bytes(doing, archive.stat().st_size) as work,
    ):
        for count, (name, more, place) in enumerate(unpacker(archive, file, to), 1):
            unpacked += more
            work.advance(place - work.done)
            if count > members or unpacked > size:
                raise UserError(f"{archive}: '{name}' exceeds {members:,} members and {size:,} bytes; {AGAIN}")


def _tar(archive: Path, opened: BinaryIO, to: Path) -> Iterator[tuple[str, int, int]]:
    """Yield each member's name, size and place in the archive BEFORE it is unpacked, when the next one is requested."""
    with tarfile.open(fileobj=opened) as tar:
        for member in tar:
            _inside(archive, member.name, plain=member.isreg() or member.isdir())
            yield member.name, member.size, opened.tell()
            tar.extract(member, to, filter="data")


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
        raise UserError(f"{archive}: '{name}' would leave the folder, or is a link or a device; {AGAIN}")
