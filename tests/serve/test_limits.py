"""Limits of bytes, time and requests; host names; the token; stopping."""

import base64
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from torch import Tensor

import mixmo
from mixmo.serve.backends import Backend
from mixmo.serve.settings import Limits

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
