"""Every bad request gets a status and one sentence of JSON, and the service goes on."""

import base64
import io
import struct
import zlib
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from PIL import Image

Draw = Callable[..., bytes]
SVG = b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><script>alert(1)</script></svg>'
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n"


def huge_png(side: int) -> bytes:
    """A PNG that says to have side x side pixels, and has none."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def animation() -> bytes:
    file = io.BytesIO()
    frames = [Image.new("RGB", (9, 9), colour) for colour in ("red", "blue")]
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:])
    return file.getvalue()


def assert_refused(response: httpx.Response, status: int, word: str) -> None:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert list(response.json()) == ["error"]
    sentence = response.json()["error"]
    assert word in sentence
    assert "\n" not in sentence
    assert sentence.isprintable()
    assert "Traceback" not in sentence


@pytest.fixture(autouse=True)
def goes_on(client: httpx.Client, draw_file: Draw) -> Any:
    yield
    assert client.post("/predict", files={"files": draw_file(0)}).status_code == 200


BAD = {
    "no bytes": (b"", 400, "empty"),
    "text": (b"hello, this is no image\n", 415, "format"),
    "svg": (SVG, 415, "format"),
    "eps": (EPS, 415, "format"),
    "20,000 pixels a side": (huge_png(20_000), 413, "pixels"),
    "8,000 pixels a side": (huge_png(8_000), 413, "pixels"),
    "animated": (animation(), 422, "frames"),
    "png without pixels": (huge_png(9), 422, "decoded"),
}


@pytest.mark.parametrize("how", ["form", "json"])
@pytest.mark.parametrize("kind", BAD)
def test_a_file_that_cannot_be_read_is_refused(kind: str, how: str, client: httpx.Client) -> None:
    content, status, word = BAD[kind]
    if how == "form":
        response = client.post("/predict", files={"files": ("a\x1b[31m.png", content, "image/png")})
    else:
        response = client.post("/predict", json={"images": [base64.b64encode(content).decode()]})
    assert_refused(response, status, word)


def test_a_truncated_jpeg_among_good_files_is_named(client: httpx.Client, draw_file: Draw) -> None:
    good, bad = draw_file(0), draw_file(1, size=(400, 400), kind="JPEG")[:-500]
    response = client.post("/predict", files=[("files", ("good.png", good)), ("files", ("bad.jpg", bad))])
    assert_refused(response, 422, "image 2 of 2 (bad.jpg)")


def test_pixels_of_32_bits_are_refused(client: httpx.Client, draw_file: Draw) -> None:
    assert_refused(client.post("/predict", files={"files": draw_file(0, mode="F", kind="TIFF")}), 422, "32 bits")


def test_a_thousand_files_are_refused(client: httpx.Client, draw_file: Draw) -> None:
    file = draw_file(0)
    response = client.post("/predict", files=[("files", (f"{n}.png", file)) for n in range(1000)])
    assert_refused(response, 413, "64 images")
    response = client.post("/predict", json={"images": [base64.b64encode(file).decode()] * 1000})
    assert_refused(response, 413, "64 images")


FORM = "multipart/form-data; boundary=b"
REQUESTS: dict[str, tuple[dict[str, Any], int, str]] = {
    "nothing": ({}, 415, "content type"),
    "text": ({"content": b"x", "headers": {"Content-Type": "text/plain"}}, 415, "text/plain"),
    "image": ({"content": b"x", "headers": {"Content-Type": "image/png"}}, 415, "multipart"),
    "no json": ({"content": b"{", "headers": {"Content-Type": "application/json"}}, 400, "not JSON"),
    "no utf-8": (
        {"content": b'{"images": ["\xff"]}', "headers": {"Content-Type": "application/json"}},
        400,
        "not JSON",
    ),
    "a list": ({"json": []}, 422, "object"),
    "no images": ({"json": {}}, 422, "images"),
    "zero images": ({"json": {"images": []}}, 422, "images"),
    "numbers": ({"json": {"images": [1]}}, 422, "images.0"),
    "unknown field": ({"json": {"images": ["aa"], "imges": 1}}, 422, "imges"),
    "no base64": ({"json": {"images": ["%%%"]}}, 422, "base64"),
    "no ascii": ({"json": {"images": ["é"]}}, 422, "base64"),
    "deep json": ({"content": b"[" * 100_000, "headers": {"Content-Type": "application/json"}}, 400, "not JSON"),
    "wide json": ({"json": {"images": [[{}]] * 10_002}}, 413, "10,000 values"),
    "no boundary": ({"content": b"x", "headers": {"Content-Type": "multipart/form-data"}}, 400, "boundary"),
    "no form": ({"content": b"x", "headers": {"Content-Type": FORM}}, 400, "form"),
    "empty form": ({"content": b"--b--\r\n", "headers": {"Content-Type": FORM}}, 422, "no files"),
    "text field": ({"files": {"a": (None, "text")}}, 422, "text"),
    "bad top": ({"params": {"top": "many"}, "json": {"images": ["aa"]}}, 422, "top"),
    "zero top": ({"params": {"top": 0}, "json": {"images": ["aa"]}}, 422, "top"),
}


@pytest.mark.parametrize("kind", REQUESTS)
def test_a_malformed_request_is_refused(kind: str, client: httpx.Client) -> None:
    options, status, word = REQUESTS[kind]
    assert_refused(client.post("/predict", **options), status, word)


def test_unknown_paths_and_methods_are_json_too(client: httpx.Client) -> None:
    assert_refused(client.get("/nothing"), 404, "")
    assert_refused(client.get("/predict"), 405, "")
    for name in ("none.jpg", "../app.py", "..%2fapp.py", "LICENSE.md"):
        assert_refused(client.get(f"/samples/{name}"), 404, "")
