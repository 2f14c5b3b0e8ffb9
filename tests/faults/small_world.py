"""What the commands of the fault tests find: few digits, some image files, a small archive and a site that has it."""

import hashlib
import io
import itertools
import os
import tarfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from mixmo.data import digits, download
from mixmo.data.check import Findings
from mixmo.data.corruptions import style
from mixmo.data.types import Dataset, Split

ARCHIVE = "cifar-10-python.tar.gz"
WORLD = "MIXMO_TORTURE"  # environment variable: the folder of the few digits, also for processes that are spawned
COMMON = ["--device", "cpu", "--quiet", "true"]
SMALL = ["train", "digits/cut-mixmo", "--width", "1", "--epochs", "2", "--batch_size", "32", "--report", "false"]


def prepare(folder: Path) -> None:
    """Make what the commands find: few digits, some image files, a small archive."""
    with np.load(digits.FILE) as arrays:
        np.savez(folder / "digits.npz", **{name: array[::15] for name, array in arrays.items()})
    noise = np.random.default_rng(0)
    for part, label, number in itertools.product(("train", "test"), "ab", range(24)):
        place = folder / "images" / part / label
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noise.integers(0, 256, (8, 8, 3), np.uint8)).save(place / f"{number}.png")
    with tarfile.open(folder / ARCHIVE, "w:gz") as tar:
        for name in ("data_batch_1", "test_batch", "batches.meta"):
            member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            member.size = 2_000_000
            tar.addfile(member, io.BytesIO(noise.bytes(member.size)))


def patch(folder: Path) -> None:
    """Let the package find few digits and a small CIFAR to corrupt."""
    digits.FILE = folder / "digits.npz"
    images = torch.arange(3 * 32 * 32 * 3).remainder(251).to(torch.uint8).view(3, 32, 32, 3)
    split = Split(images, torch.arange(3))
    few = Dataset("cifar10", split, split, ("a", "b", "c"), (0.5,) * 3, (0.2,) * 3)
    style.data.load = lambda name, *rest, load=style.data.load, **more: (
        few if name == "cifar10" else load(name, *rest, **more)
    )


class Site(BaseHTTPRequestHandler):
    """Serves the archive, from any byte on."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        content = (Path(os.environ[WORLD]) / ARCHIVE).read_bytes()
        start = int((self.headers.get("Range") or "bytes=0-")[6:-1])
        if start >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        with suppress(OSError):  # whoever asked was killed
            for place in range(start, len(content), 1 << 19):
                self.wfile.write(content[place : place + (1 << 19)])
                time.sleep(0.01)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextmanager
def site(archive: Path) -> Iterator[None]:
    """Let `data get cifar10` download the archive from this machine."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Site)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/{ARCHIVE}"
    digest = hashlib.md5(archive.read_bytes()).hexdigest()
    download.SOURCES["cifar10"] = download.SOURCES["cifar10"]._replace(url=url, md5=digest)
    download.check = lambda name, to: Findings("", [])  # it would miss the real images
    yield
    server.shutdown()
