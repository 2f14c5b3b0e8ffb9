"""Requests that nobody should send to `mixmo serve`, and the statuses with which it may answer each.

A status of 0 stands for a connection that is closed without an answer, which is right where no request was complete.
"""

import base64
import io
import json
import random
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from PIL import Image

import mixmo

BOUNDARY = "mixmo-load"
SAMPLES = sorted((Path(mixmo.__file__).parent / "serve" / "samples").glob("*.jpg"))
BUSY = (429, 503)  # the client may try again
SECRETS = (b"root:", b"def create_app", b"Traceback")  # that no answer may hold


class Hostile(NamedTuple):
    """A request: its bytes, what may answer it, and how it is sent."""

    content: bytes
    statuses: tuple[int, ...]
    pause: float = 0.0  # seconds between two bytes, of a slow client
    hang_up: bool = False  # leaves without waiting for an answer
    reads: bool = True


def head(path: str, content_type: str, length: int, method: str = "POST", *more: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", "Connection: close"]
    lines += [f"Content-Type: {content_type}", f"Content-Length: {length}", *more]
    return "\r\n".join([*lines, "", ""]).encode()


def form(files: list[tuple[str, bytes]], path: str = "/predict", *more: str) -> bytes:
    """A request with files."""
    parts = [
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="files"; filename="{name}"\r\n\r\n'.encode()
        + content
        + b"\r\n"
        for name, content in files
    ]
    body = b"".join(parts) + f"--{BOUNDARY}--\r\n".encode()
    return head(path, f"multipart/form-data; boundary={BOUNDARY}", len(body), "POST", *more) + body


def in_json(content: bytes, path: str = "/predict") -> bytes:
    return head(path, "application/json", len(content)) + content


def png(side: int, rows: int) -> bytes:
    """A black PNG of side x side pixels, of which `rows` are there; a few hundred kilobytes at most."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    pixels = zlib.compressobj(9)
    packed = b"".join(pixels.compress(bytes(1 + 3 * side)) for _ in range(rows)) + pixels.flush()
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", packed) + chunk(b"IEND", b"")


def changed(content: bytes, draw: random.Random) -> bytes:
    """An image file with some bytes changed, or cut short."""
    out = bytearray(content)
    for _ in range(draw.choice((1, 8, 64))):
        out[draw.randrange(len(out))] = draw.randrange(256)
    return bytes(out[: draw.randrange(1, len(out))] if draw.random() < 0.3 else out)


def as_file(content: bytes, *statuses: int) -> Hostile:
    return Hostile(form([("x", content)]), statuses)


def pictures(draw: random.Random) -> list[bytes]:
    """A sample in several formats."""
    image = Image.open(draw.choice(SAMPLES)).convert("RGB")
    files = []
    for kind in ("PNG", "JPEG", "WEBP", "GIF", "TIFF", "BMP", "PPM"):
        file = io.BytesIO()
        image.save(file, kind)
        files.append(file.getvalue())
    return files


TRAVERSALS = (
    "/page/../app.py",
    "/page/..%2fapp.py",
    "/page/%2e%2e/app.py",
    "/page/....//app.py",
    "/page//etc/passwd",
    "/samples/../app.py",
    "/samples/..%2f..%2f..%2f..%2fetc%2fpasswd",
    "/samples/%00cat.jpg",
    "/static-offline-docs/..%2f..%2fapp.py",
    "/..%c0%afetc/passwd",
    "//etc/passwd",
    "/page/C:%5cwindows%5cwin.ini",
)
BROKEN = (
    b"\x00\xff\n\n",
    b"GET\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -1\r\n\r\n",
    b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
    b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nG",
    b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),  # TLS
)


def kinds(draw: random.Random, scale: float = 1.0) -> dict[str, Callable[[], Hostile]]:
    """Return the kinds of requests; each call makes another. `scale` makes the large ones smaller."""
    files = pictures(draw)
    most = int(scale * 30 * 2**20)  # of 32 MiB
    side = int(7000 * scale**0.5)
    large, huge = png(side, side), png(20_000, 0)
    file = io.BytesIO()
    Image.new("RGB", (side, side)).save(file, "WEBP", lossless=True, quality=0, method=0)
    webp = file.getvalue()

    def get(path: str, *statuses: int) -> Hostile:
        return Hostile(head(path, "text/plain", 0, "GET"), statuses)

    def padded(name: bytes, most: int) -> bytes:
        return b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n" + name + b"x" * most + b"\r\n\r\n"

    def many(text: str) -> bytes:
        return ('{"images": [' + ",".join([text] * (most // (len(text) + 1))) + "]}").encode()

    return {
        "random bytes": lambda: as_file(draw.randbytes(5_000), 415, 422),
        "a changed image file": lambda: as_file(changed(draw.choice(files), draw), 200, 413, 415, 422),
        "no bytes, text, SVG": lambda: as_file(draw.choice((b"", b"text", b"<svg/>")), 400, 415),
        "PNG that claims 400 million pixels": lambda: as_file(huge, 413),
        "PNG of the most pixels": lambda: as_file(large, 200),
        "WebP of the most pixels": lambda: as_file(webp, 200),
        "64 PNGs of the most pixels": lambda: Hostile(form([("x", large)] * 64), (200, 413)),
        "deep JSON": lambda: Hostile(in_json(b"[" * most), (400,)),
        "wide JSON": lambda: Hostile(in_json(many('""')), (413,)),
        "JSON of wrong kinds": lambda: Hostile(in_json(many("[{}]")), (413,)),
        "JSON of many fields": lambda: Hostile(in_json(b'{"a":0' + b',"a":0' * (most // 6) + b"}"), (413,)),
        "a number of many digits": lambda: Hostile(in_json(b'{"images": ' + b"9" * most + b"}"), (400, 422)),
        "much base64": lambda: Hostile(in_json(b'{"images": ["' + base64.b64encode(bytes(most // 2)) + b'"]}'), (415,)),
        "mixture of wrong numbers": lambda: Hostile(
            in_json(json.dumps({"images": ["a", "b"], "ratio": float("nan"), "seed": 2**90}).encode(), "/mix"),
            (400, 422),
        ),
        "10,000 parts of a form": lambda: Hostile(form([("x", b"x")] * 10_000), (400, 413)),
        "a part with a long head": lambda: Hostile(form([("x" * (most // 4), b"x")]), (400, 413, 415, 422)),
        "a long header": lambda: Hostile(padded(b"X: ", 2**20), (0, 400, 431)),
        "many headers": lambda: Hostile(padded(b"\r\n".join(b"X%d: y" % i for i in range(50_000)), 0), (0, 400, 431)),
        "a long address": lambda: Hostile(b"GET /" + b"a" * 2**20 + b" HTTP/1.1\r\n\r\n", (0, 400, 414, 431)),
        "a path out of the folder": lambda: get(draw.choice(TRAVERSALS), 0, 400, 404),
        "another host name": lambda: Hostile(b"GET /model HTTP/1.1\r\nHost: evil.example\r\n\r\n", (400,)),
        "broken HTTP": lambda: Hostile(draw.choice(BROKEN), (0, 400, 408, 415, 422, 501)),
        "another method": lambda: Hostile(head("/predict", "text/plain", 0, draw.choice(("PUT", "TRACE"))), (405,)),
        "a web socket": lambda: Hostile(
            b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade, close\r\n"
            b"Sec-WebSocket-Key: eA==\r\nSec-WebSocket-Version: 13\r\n\r\n",
            (0, 200, 400, 404),
        ),
        "more bytes than allowed": lambda: Hostile(in_json(bytes(4 * most // 3)), (413,)),
        "hangs up in the middle": lambda: Hostile(form([("x", files[0])])[:-2_000], (0,), hang_up=True),
        "hangs up before the answer": lambda: Hostile(form([("x", files[0])]), (0,), hang_up=True),
        "reads no answer": lambda: Hostile(
            form([("x", files[1])] * 64, "/predict?top=100&input=true"), (0, 200), reads=False
        ),
        "sends nothing": lambda: Hostile(b"", (0,)),
        "a slow head": lambda: Hostile(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"y" * 999, (0, 400), 0.2),
        "a slow body": lambda: Hostile(form([("x", files[1])]), (0, 408), 0.2),  # which may send on and not hear it
    }
