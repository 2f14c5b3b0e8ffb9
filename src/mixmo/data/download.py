"""Fetch a data set from its official place: resumed where it was cut, verified, and unpacked with care."""

import http.client
import os
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from mixmo.data.catalog import remedy
from mixmo.data.check import check
from mixmo.data.extract import unpack
from mixmo.storage.checksums import md5
from mixmo.storage.files import file_lock
from mixmo.utils.errors import UserError, unknown
from mixmo.utils.progress import Bytes, Work

TRIES = 4  # of a connection that is cut; each goes on where the last one ended
TIMEOUT = 30.0  # seconds without a byte, or with fewer than SLOWEST
SLOWEST = 1 << 16  # bytes
BLOCK = 1 << 20


class Source(NamedTuple):
    """An archive in the world, and what unpacking it gives; the limits are a little above the real figures."""

    url: str
    md5: str
    folder: str
    members: int
    size: int

    @property
    def archive(self) -> str:
        return self.url.rsplit("/", 1)[1].split("?")[0]


SOURCES = {
    "cifar10": Source(
        "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        "c58f30108f718f92721af3b95e74349a",
        "cifar-10-batches-py",
        members=20,
        size=200_000_000,
    ),
    "cifar100": Source(
        "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
        "eb9058c3a382ffc7106e4002c42a8d85",
        "cifar-100-python",
        members=20,
        size=200_000_000,
    ),
    "tiny-imagenet": Source(
        "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
        "90528d7ca1a48142e341f4ef8d21d0de",
        "tiny-imagenet-200",
        members=130_000,
        size=500_000_000,
    ),
    "cifar10-c": Source(
        "https://zenodo.org/records/2535967/files/CIFAR-10-C.tar?download=1",
        "56bf5dcef84df0e2308c6dcbcbbd8499",
        "CIFAR-10-C",
        members=40,
        size=3_500_000_000,
    ),
    "cifar100-c": Source(
        "https://zenodo.org/records/3555552/files/CIFAR-100-C.tar?download=1",
        "11f0ed0f1191edbf9fa23466ae6021d3",
        "CIFAR-100-C",
        members=40,
        size=3_500_000_000,
    ),
}


class _CutError(Exception):
    """A connection that was cut, or is too slow ever to end."""


def get(name: str, to: Path) -> Path:
    """The folder of data set `name` below `to`, fetched and unpacked unless it is there already and right.

    An archive put into `to` by hand is taken instead of the network's, and kept.
    """
    if name not in SOURCES:
        raise unknown("data set to fetch", name, SOURCES)
    source = SOURCES[name]
    folder = to / source.folder
    if folder.exists():
        faults = check(name, to).faults
        if faults:
            raise UserError(f"{folder} exists already and is not right: {faults[0]}")
        return folder
    busy = f"another process is getting {name} into {to}; wait until it has ended: {folder} is there then"
    try:
        to.mkdir(parents=True, exist_ok=True)
        with file_lock(to / f".{source.archive}.lock", busy):
            if not folder.exists():  # else the other process has ended since we looked
                _get(name, source, to)
    except OSError as error:
        raise UserError(
            f"{error.filename or to} cannot be written ({error.strerror or error}); "
            f"make room there or choose another folder, then {remedy(name, to)}"
        ) from None
    return folder


def _get(name: str, source: Source, to: Path) -> None:
    archive = to / source.archive
    by_hand = archive.exists()
    if not by_hand:
        command = f"`mixmo data get {name} --to {to}` unpacks it"
        part = archive.with_name(f"{archive.name}.part")
        _fetch(source, part, f"put {source.archive} into {to} by hand, then {command}")
        _verify(source, part, keep=False)
        os.replace(part, archive)  # right, whatever happens to this process now
    else:
        _verify(source, archive, keep=True)
    unpack(archive, to / source.folder, source.members, source.size)
    if not by_hand:
        archive.unlink()


def _verify(source: Source, archive: Path, keep: bool) -> None:
    with Work(f"verifying {source.archive}"):
        found = md5(archive)
    if found == source.md5:
        return
    if keep:
        raise UserError(
            f"{archive} has the md5 {found} instead of {source.md5}: it is damaged or another file; "
            f"delete it and fetch it again from {source.url}"
        )
    archive.unlink()
    raise UserError(
        f"what {source.url} sent has the md5 {found} instead of {source.md5} and was deleted from {archive}; try again"
    )


def _fetch(source: Source, part: Path, by_hand: str) -> None:
    for _ in range(TRIES):
        if _attempt(source, part, by_hand):
            return
    raise UserError(
        f"the connection to {source.url} was cut or nearly stood still {TRIES} times; {part} keeps what came, "
        f"and the same command goes on from there; or {by_hand}"
    )


def _attempt(source: Source, part: Path, by_hand: str) -> bool:
    """Go on with the download into `part`; whether it is complete."""
    start = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(source.url, headers={"User-Agent": "mixmo"})
    if start:
        request.add_header("Range", f"bytes={start}-")
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and start:  # nothing is left to send: the part is complete, or not of this file
            if error.headers.get("Content-Range") == f"bytes */{start}":
                return True
            part.unlink()
            return False
        reason = " ".join(str(error.reason).split())
        raise UserError(f"{source.url} answered {error.code} {reason}; try later, or {by_hand}") from None
    except urllib.error.URLError as error:
        raise UserError(f"{source.url} cannot be reached ({error.reason}); is there a network? Or {by_hand}") from None
    except (http.client.HTTPException, OSError):
        return False
    with response:
        resumed = response.status == 206 and (response.headers.get("Content-Range") or "").startswith(f"bytes {start}-")
        done = start if resumed else 0
        total = None if response.length is None else done + response.length
        try:
            with (
                part.open("ab" if resumed else "wb") as file,
                Bytes(f"downloading {source.archive}", total, done) as work,
            ):
                for block in _blocks(response):
                    file.write(block)
                    work.advance(len(block))
                    if file.tell() > source.size:
                        part.unlink()
                        raise UserError(
                            f"{source.url} sent more than the {source.size:,} bytes that can be right, and what came "
                            f"was deleted; try later, or {by_hand}"
                        )
        except _CutError:
            return False
    return total in (None, part.stat().st_size)


def _blocks(response: http.client.HTTPResponse) -> Iterator[bytes]:
    """What comes, as it comes, until it ends."""
    until, came = time.monotonic() + TIMEOUT, 0
    while True:
        try:
            block = response.read1(BLOCK)
        except (http.client.HTTPException, OSError) as error:
            raise _CutError from error
        if not block:
            return
        yield block
        came += len(block)
        if time.monotonic() > until:
            if came < SLOWEST:
                raise _CutError
            until, came = time.monotonic() + TIMEOUT, 0
