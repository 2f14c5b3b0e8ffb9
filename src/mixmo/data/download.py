"""Download a data set from its official site: resumed after a broken connection, verified, and unpacked safely."""

import http.client
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import NamedTuple

from mixmo.data.check import check
from mixmo.data.extract import unpack
from mixmo.storage.checksums import md5
from mixmo.storage.files import file_lock, write_errors
from mixmo.utils.errors import UserError, first_line, unknown
from mixmo.utils.progress import Bytes, Work

TRIES = 4  # connections; each resumes where the last one broke
TIMEOUT = 30.0  # seconds without a byte
BLOCK = 1 << 20
BROKEN = (http.client.HTTPException, ConnectionError, TimeoutError, ssl.SSLError)


class Source(NamedTuple):
    """An archive on the web and what it unpacks to; the limits are a little above the real figures."""

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


def get(name: str, to: Path) -> Path:
    """Download a data set of `SOURCES` and unpack it, unless it is there already; return its folder.

    An archive that was put into `to` by hand is used instead, and kept.
    """
    if name not in SOURCES:
        raise unknown("data set to download", name, SOURCES)
    source = SOURCES[name]
    folder, part = to / source.folder, to / f"{source.archive}.part"
    if folder.exists():
        if faults := check(name, to).faults:
            raise UserError(f"{folder} exists already and is damaged; delete it to download it again: {faults[0]}")
        part.unlink(missing_ok=True)  # of a process that was killed when all was unpacked
        return folder
    busy = f"another process is downloading {name} into {to}; wait until it has ended"
    with write_errors(folder):
        to.mkdir(parents=True, exist_ok=True)
        with file_lock(to / f".{source.archive}.lock", busy):
            if not folder.exists():  # the other process may have ended since
                _get(source, to, part)
    return folder


def _get(source: Source, to: Path, part: Path) -> None:
    archive = to / source.archive
    by_hand = archive.exists()
    file = archive if by_hand else part
    if not by_hand:
        _download(source, part)
    with Work(f"verifying {source.archive}"):
        found = md5(file)
    if found != source.md5:
        if not by_hand:
            file.unlink()
        raise UserError(f"{file} has the md5 {found} instead of {source.md5}; download it again from {source.url}")
    unpack(file, to / source.folder, source.members, source.size)
    if not by_hand:
        part.unlink(missing_ok=True)


def _download(source: Source, part: Path) -> None:
    by_hand = f"or put {source.archive} into {part.parent} by hand and give the same command"
    for _ in range(TRIES):
        try:
            if _attempt(source, part):
                return
        except urllib.error.URLError as error:
            raise UserError(f"{source.url} cannot be downloaded ({first_line(error)}); try later, {by_hand}") from None
    raise UserError(f"the connection to {source.url} broke {TRIES} times; the same command resumes, {by_hand}")


def _attempt(source: Source, part: Path) -> bool:
    """Resume the download into `part`; return whether it is complete."""
    start = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(source.url, headers={"User-Agent": "mixmo"})
    if start:
        request.add_header("Range", f"bytes={start}-")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
            resumed = (response.headers.get("Content-Range") or "").startswith(f"bytes {start}-")
            done = start if resumed else 0
            total = None if response.length is None else done + response.length
            with (
                part.open("ab" if resumed else "wb") as file,
                Bytes(f"downloading {source.archive}", total, done) as work,
            ):
                while block := response.read1(BLOCK):
                    file.write(block)
                    work.advance(len(block))
                    if file.tell() > source.size:
                        part.unlink()
                        raise UserError(f"{source.url} sent more than {source.size:,} bytes; it is another file")
    except urllib.error.HTTPError as error:
        if error.code == 416 and start:  # nothing is left to send; the checksum will tell
            return True
        raise
    except BROKEN:
        return False
    return total in (None, part.stat().st_size)
