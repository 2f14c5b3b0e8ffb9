"""Limits of bytes, time and requests; host names; the token; stopping."""

import asyncio
import base64
import io
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import httpx
import pytest
from PIL import Image
from starlette.responses import PlainTextResponse
from torch import Tensor

import mixmo
from mixmo.serve.backends import Backend
from mixmo.serve.guard import Guard
from mixmo.serve.settings import Limits
from mixmo.serve.telemetry import Telemetry

Draw = Callable[..., bytes]
TOKEN = "0123456789-secret-token"


class Slow:
    """A backend that waits before it predicts, once it is told to."""

    def __init__(self, backend: Backend) -> None:
        self._backend, self.seconds, self.begun = backend, 0.0, threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def predict(self, images_NHWC: Tensor) -> mixmo.Prediction:
        if self.seconds:
            self.begun.set()
        time.sleep(self.seconds)
        return self._backend.predict(images_NHWC)


def error(response: httpx.Response) -> str:
    return str(response.json()["error"])


@pytest.mark.parametrize("how", ["length", "chunks"])
def test_a_body_of_too_many_bytes_is_refused(how: str, backend: Backend, serve: Any, draw_file: Draw) -> None:
    headers = {"Content-Type": "application/json"}

    def chunks() -> Iterator[bytes]:
        yield from [b"x" * 5_000] * 8

    with serve(backend, Limits(max_bytes=20_000)) as client:
        response = client.post("/predict", content=b"x" * 40_000 if how == "length" else chunks(), headers=headers)
        assert (response.status_code, "20,000 bytes" in error(response)) == (413, True)
        assert client.post("/predict", files={"files": draw_file(0)}).status_code == 200


def test_a_slow_client_is_refused_while_others_are_answered(backend: Backend, serve: Any, draw_file: Draw) -> None:
    with (
        serve(backend, Limits(max_seconds=0.6)) as client,
        socket.create_connection((client.base_url.host, client.base_url.port)) as slow,
    ):
        slow.sendall(
            b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"
        )
        assert client.post("/predict", files={"files": draw_file(0)}).status_code == 200
        slow.settimeout(5)
        answer = b"".join(iter(lambda: slow.recv(4096), b""))  # until the connection is closed
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408 ")
    assert "0.6 seconds" in json.loads(body)["error"]


def test_bytes_of_all_requests_together_are_limited(backend: Backend, serve: Any, draw_file: Draw) -> None:
    slow = Slow(backend)
    with serve(slow, Limits(max_held_bytes=60_000)) as client, ThreadPoolExecutor(1) as pool:
        slow.seconds = 0.6
        large = {"json": {"images": ["A" * 50_000]}}
        held = pool.submit(
            httpx.post, f"{client.base_url}/predict", files=[("files", draw_file(n)) for n in range(9)], timeout=20
        )
        assert slow.begun.wait(5)
        response = client.post("/predict", **large)
        assert (response.status_code, "60,000 bytes" in error(response)) == (429, True)
        assert held.result().status_code == 200
        assert client.post("/predict", **large).status_code in (415, 422)  # all that was held is free again


def test_decoding_ends_at_the_deadline(backend: Backend, serve: Any) -> None:
    file = io.BytesIO()
    Image.new("RGB", (3000, 3000)).save(file, "PNG", compress_level=1)
    with serve(backend, Limits(max_seconds=0.5)) as client:
        begun = time.perf_counter()
        response = client.post("/predict", files=[("files", file.getvalue())] * 60)
        assert (response.status_code, "0.5 seconds" in error(response)) == (503, True)
        assert time.perf_counter() - begun < 4  # all of them take longer


@pytest.mark.parametrize("sent", [b"", b"GET /health HTTP/1.1\r\nX: "])
def test_a_connection_without_a_whole_request_is_closed(sent: bytes, backend: Backend, serve: Any) -> None:
    with (
        serve(backend, Limits(max_seconds=0.3)) as client,
        socket.create_connection((client.base_url.host, client.base_url.port)) as silent,
    ):
        assert client.get("/health").status_code == 200  # keeps its connection, and is not idle for long
        silent.sendall(sent)
        silent.settimeout(5)
        with suppress(ConnectionResetError):
            assert silent.recv(1) == b""


def test_an_answer_that_nobody_reads_is_given_up() -> None:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: object) -> None:
        await asyncio.sleep(60)  # the client's window is full

    guard = Guard(PlainTextResponse("text"), Limits(max_seconds=0.2), "", (), ("/",), Telemetry())
    scope = {"type": "http", "method": "GET", "path": "/", "headers": []}
    asyncio.run(asyncio.wait_for(guard(scope, receive, send), 5))
    assert guard.active == 0


def test_requests_beyond_the_limit_are_told_to_try_again(backend: Backend, serve: Any, draw_file: Draw) -> None:
    slow = Slow(backend)
    with serve(slow, Limits(max_requests=2)) as client:
        slow.seconds = 0.4

        def ask(_: int) -> httpx.Response:
            return httpx.post(f"{client.base_url}/predict", files={"files": draw_file(0)}, timeout=20)

        with ThreadPoolExecutor(6) as pool:
            answers = list(pool.map(ask, range(6)))
        assert {answer.status_code for answer in answers} == {200, 429}
        refused = next(answer for answer in answers if answer.status_code == 429)
        assert refused.headers["retry-after"] == "1"
        assert "2 requests" in error(refused)
        assert client.get("/health").status_code == 200


def test_a_prediction_that_takes_too_long_is_unavailable(backend: Backend, serve: Any, draw_file: Draw) -> None:
    slow = Slow(backend)
    with serve(slow, Limits(max_seconds=0.3)) as client:
        slow.seconds = 0.8
        response = client.post("/predict", files={"files": draw_file(0)})
        assert (response.status_code, "0.3 seconds" in error(response)) == (503, True)
        slow.seconds = 0.0
        time.sleep(0.8)
        assert client.post("/predict", files={"files": draw_file(0)}).status_code == 200


def test_stopping_answers_what_its_grace_is_too_short_for(
    backend: Backend, serve: Any, draw_file: Draw, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("mixmo.serve.server.GRACE", 0.2)
    slow = Slow(backend)
    with ThreadPoolExecutor(1) as pool:
        with serve(slow) as client:
            slow.seconds = 1.5
            answer = pool.submit(httpx.post, f"{client.base_url}/predict", files={"files": draw_file(0)}, timeout=20)
            assert slow.begun.wait(5)
        assert (answer.result().status_code, "shutting down" in error(answer.result())) == (503, True)
    assert "Traceback" not in caplog.text


def test_stopping_finishes_the_requests_in_work(backend: Backend, serve: Any, draw_file: Draw) -> None:
    slow = Slow(backend)
    with ThreadPoolExecutor(1) as pool:
        with serve(slow) as client:
            slow.seconds = 0.5
            answer = pool.submit(httpx.post, f"{client.base_url}/predict", files={"files": draw_file(0)}, timeout=20)
            assert slow.begun.wait(5)
        assert answer.result().status_code == 200
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{client.base_url}/health")


def test_a_failure_of_the_network_is_an_error_and_the_service_goes_on(
    backend: Backend, serve: Any, draw_file: Draw
) -> None:
    class Broken(Slow):
        def predict(self, images_NHWC: Tensor) -> mixmo.Prediction:
            if self.seconds:
                raise RuntimeError("a secret of the machine")
            return super().predict(images_NHWC)

    broken = Broken(backend)
    with serve(broken) as client:
        broken.seconds = 1.0
        response = client.post("/predict", files={"files": draw_file(0)})
        assert response.status_code == 500
        assert "secret" not in response.text
        broken.seconds = 0.0
        assert client.post("/predict", files={"files": draw_file(0)}).status_code == 200


def test_a_web_page_with_its_own_host_name_reads_nothing(client: httpx.Client) -> None:
    response = client.get("/model", headers={"Host": "evil.example:80"})
    assert (response.status_code, "127.0.0.1" in error(response)) == (400, True)


def test_answers_may_not_be_framed_or_run_other_scripts(client: httpx.Client) -> None:
    headers = client.get("/").headers
    assert "script-src 'self'" in headers["content-security-policy"]
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert "access-control-allow-origin" not in headers


def test_with_a_token_only_the_page_is_open(backend: Backend, serve: Any, draw_file: Draw) -> None:
    with serve(backend, token=TOKEN) as client:
        for path in ("/", "/health", "/page/page.js", "/samples/cat.jpg", "/docs", "/openapi.json"):
            assert client.get(path).status_code == 200, path
        for headers in (
            {},
            {"Authorization": TOKEN},
            {"Authorization": "Bearer x"},
            {"Authorization": f"Basic {TOKEN}"},
        ):
            for path in ("/model", "/metrics", "/nothing"):
                response = client.get(path, headers=headers)
                assert (response.status_code, response.headers["www-authenticate"]) == (401, "Bearer")
            assert client.post("/predict", files={"files": draw_file(0)}, headers=headers).status_code == 401
            assert client.post("/mix", json={}, headers=headers).status_code == 401
        client.headers["Authorization"] = f"Bearer {TOKEN}"
        assert client.post("/predict", files={"files": draw_file(0)}).status_code == 200
        assert client.get("/metrics").status_code == 200
        assert "HTTPBearer" in client.get("/openapi.json").text


@pytest.mark.parametrize("field", ["max_bytes", "max_images", "max_pixels", "max_requests", "max_seconds", "batch"])
def test_limits_must_be_positive(field: str) -> None:
    with pytest.raises(mixmo.UserError, match=field):
        Limits(**{field: 0})


def test_the_documentation_loads_nothing_from_elsewhere(client: httpx.Client) -> None:
    page = client.get("/docs").text
    assert "swagger" in page
    assert "https://" not in page
    assert "http://" not in page


def test_data_urls_of_other_kinds_are_read_by_their_bytes(client: httpx.Client, draw_file: Draw) -> None:
    image = "data:text/html;base64," + base64.b64encode(draw_file(0)).decode()
    assert client.post("/predict", json={"images": [image]}).status_code == 200
