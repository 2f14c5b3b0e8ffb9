"""Downloads against a real HTTP server on 127.0.0.1 that misbehaves on demand."""

import hashlib
import io
import socket
import tarfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from mixmo.data import download
from mixmo.data.check import Findings
from mixmo.data.download import SOURCES, Source, get
from mixmo.data.extract import unpack
from mixmo.utils.errors import UserError
from mixmo.utils.progress import Work, shown


def archive(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as file:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            file.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


NOISE = b"".join(hashlib.sha256(bytes([i % 256, i // 256])).digest() for i in range(10_000))  # does not compress
GOOD = archive({"cifar-10-batches-py/data": NOISE})


class Server(ThreadingHTTPServer):
    """Serves `content` at any path; notes every request's Range header."""

    daemon_threads = True
    content = GOOD
    status = 200  # an error to answer with
    cut_after: int | None = None  # bytes of a body after which the connection is closed
    cuts = 0  # how many times
    ranges_honoured = True
    whole_range = False  # a range is answered by that of the whole file
    silence = 0.0  # seconds before it answers at all
    chunked = False
    length: str | None = None  # what it says of the body's length instead of the truth
    endless = False  # the body never ends
    redirect = False  # to itself

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[str | None] = []

    def handle_error(self, *_: object) -> None:
        """Whoever asked has gone."""


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        server, body, start = self.server, self.server.content, 0
        wanted = self.headers.get("Range")
        server.asked.append(wanted)
        time.sleep(server.silence)
        if server.status != 200:
            self.send_error(server.status)
            return
        if server.redirect:
            self.send_response(302)
            self.send_header("Location", self.path)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if server.length or server.endless:
            self.send_response(200)
            if server.length:
                self.send_header("Content-Length", server.length)
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(body)
            with suppress(OSError):
                while server.endless:
                    self.wfile.write(body)
            return
        if wanted and server.ranges_honoured:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            if start >= len(body):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(body)}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            start = 0 if server.whole_range else start
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        else:
            self.send_response(200)
        if server.chunked:
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(f"{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n")
            return
        self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        if server.cut_after is not None and server.cuts > 0:
            server.cuts -= 1
            self.wfile.write(body[start : start + server.cut_after])
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        self.wfile.write(body[start:])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "*")
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        offer(monkeypatch, server, GOOD)
        yield server
        server.shutdown()
        thread.join()


def offer(monkeypatch: pytest.MonkeyPatch, server: Server, content: bytes, md5: str | None = None) -> None:
    server.content = content
    url = f"http://127.0.0.1:{server.server_port}/kriz/cifar-10-python.tar.gz?download=1"
    digest = md5 or hashlib.md5(content).hexdigest()
    monkeypatch.setitem(SOURCES, "cifar10", Source(url, digest, "cifar-10-batches-py", 5, 1_000_000))


def unpacked(to: Path) -> bool:
    """Exactly the folder is there: no archive, no part, no leftovers."""
    names = [path.name for path in to.iterdir()]
    return names == ["cifar-10-batches-py"] and (to / names[0] / "data").read_bytes() == NOISE


def assert_fails(to: Path, *words: str) -> None:
    with pytest.raises(UserError) as caught:
        get("cifar10", to)
    for word in words:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_archive_is_downloaded_and_unpacked(server: Server, tmp_path: Path):
    assert get("cifar10", tmp_path / "new" / "data") == tmp_path / "new" / "data" / "cifar-10-batches-py"
    assert unpacked(tmp_path / "new" / "data")
    assert server.asked == [None]


def test_a_server_may_omit_the_length(server: Server, tmp_path: Path):
    server.chunked = True
    get("cifar10", tmp_path)
    assert unpacked(tmp_path)


def test_a_broken_connection_resumes_where_it_ended(server: Server, tmp_path: Path, works: list[Work]):
    server.cut_after, server.cuts = 100_000, 2
    with shown():
        get("cifar10", tmp_path)
    assert unpacked(tmp_path)
    *downloads, verifying, unpacking = works
    assert [(work.before, work.done) for work in downloads] == [(0, 1e5), (1e5, 2e5), (2e5, len(GOOD))]
    assert {(work.doing, work.total) for work in downloads} == {("downloading cifar-10-python.tar.gz", len(GOOD))}
    assert [verifying.doing, unpacking.doing] == [
        f"{what} cifar-10-python.tar.gz" for what in ("verifying", "unpacking")
    ]
    assert server.asked == [None, "bytes=100000-", "bytes=200000-"]


@pytest.mark.parametrize("step", ["md5", "unpack"])
def test_the_same_command_resumes_after_a_kill(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
):
    """A damaged part that was not verified yet must not pass for an archive put there by hand."""

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    server.content = GOOD if step == "unpack" else GOOD[:-9] + b"x" * 9
    with monkeypatch.context() as patched:
        patched.setattr(download, step, killed)
        with pytest.raises(KeyboardInterrupt):
            get("cifar10", tmp_path)
    server.content = GOOD
    if step == "md5":
        assert_fails(tmp_path, "md5")
    get("cifar10", tmp_path)
    assert unpacked(tmp_path)


def test_an_archive_is_removed_if_the_process_was_killed_when_it_was_unpacked(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(download, "check", lambda *_: Findings("", []))
    (tmp_path / "cifar-10-batches-py").mkdir()
    (tmp_path / "cifar-10-python.tar.gz.part").write_bytes(GOOD)
    get("cifar10", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["cifar-10-batches-py"]


def test_after_too_many_broken_connections_the_next_call_resumes(server: Server, tmp_path: Path):
    server.cut_after, server.cuts = 1_000, download.TRIES
    part = tmp_path / "cifar-10-python.tar.gz.part"
    assert_fails(tmp_path, SOURCES["cifar10"].url, "broke", "resumes")
    assert part.stat().st_size == 1_000 * download.TRIES
    get("cifar10", tmp_path)
    assert unpacked(tmp_path)
    assert server.asked[-1] == f"bytes={1_000 * download.TRIES}-"


def test_an_error_of_the_server_keeps_the_part(server: Server, tmp_path: Path):
    part = tmp_path / "cifar-10-python.tar.gz.part"
    part.write_bytes(GOOD[:1_000])
    server.status = 503
    assert_fails(tmp_path, "503")
    assert part.read_bytes() == GOOD[:1_000]
    server.status = 200
    get("cifar10", tmp_path)
    assert unpacked(tmp_path)
    assert server.asked == ["bytes=1000-"] * 2


def test_an_endless_download_is_deleted(server: Server, tmp_path: Path):
    server.endless = True
    assert_fails(tmp_path, "1,000,000 bytes")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("length", ["abc", "-5", "1e9"])
def test_an_invalid_length_is_ignored(server: Server, tmp_path: Path, length: str):
    server.length = length
    get("cifar10", tmp_path)
    assert unpacked(tmp_path)


def test_an_endless_redirection_is_an_error(server: Server, tmp_path: Path):
    server.redirect = True
    assert_fails(tmp_path, "302", "by hand")


def test_a_server_without_ranges_starts_again(server: Server, tmp_path: Path):
    server.ranges_honoured, server.cut_after, server.cuts = False, 1_000, 1
    get("cifar10", tmp_path)
    assert unpacked(tmp_path)


def test_another_range_than_requested_is_not_appended(server: Server, tmp_path: Path):
    server.whole_range, server.cut_after, server.cuts = True, 1_000, 1
    get("cifar10", tmp_path)
    assert unpacked(tmp_path)
    assert server.asked == [None, "bytes=1000-"]


def test_a_silent_server_is_an_error(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(download, "TIMEOUT", 0.05)
    server.silence = 2.0
    assert_fails(tmp_path, "by hand")
    assert len(server.asked) == download.TRIES


def test_a_complete_part_is_not_downloaded_again(server: Server, tmp_path: Path):
    """The process was killed between the last byte and the rename."""
    (tmp_path / "cifar-10-python.tar.gz.part").write_bytes(GOOD)
    get("cifar10", tmp_path)
    assert unpacked(tmp_path)
    assert server.asked == [f"bytes={len(GOOD)}-"]


def test_a_part_of_another_file_is_found_by_its_checksum(server: Server, tmp_path: Path):
    (tmp_path / "cifar-10-python.tar.gz.part").write_bytes(b"another file")
    assert_fails(tmp_path, "md5")
    assert list(tmp_path.iterdir()) == []
    get("cifar10", tmp_path)
    assert unpacked(tmp_path)


def test_a_download_with_another_checksum_is_deleted(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    offer(monkeypatch, server, GOOD, md5="0" * 32)
    assert_fails(tmp_path, SOURCES["cifar10"].url, hashlib.md5(GOOD).hexdigest(), "0" * 32)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("status", [404, 403, 503])
def test_http_errors_are_reported(server: Server, tmp_path: Path, status: int):
    server.status = status
    assert_fails(tmp_path, SOURCES["cifar10"].url, str(status), f"put cifar-10-python.tar.gz into {tmp_path} by hand")


def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """A port at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    url = f"http://127.0.0.1:{port}/cifar-10-python.tar.gz"
    monkeypatch.setenv("no_proxy", "*")
    digest = hashlib.md5(GOOD).hexdigest()
    monkeypatch.setitem(SOURCES, "cifar10", Source(url, digest, "cifar-10-batches-py", 5, 1_000_000))


def test_an_archive_put_there_by_hand_is_used_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    no_network(monkeypatch)
    assert_fails(tmp_path, SOURCES["cifar10"].url, f"put cifar-10-python.tar.gz into {tmp_path} by hand")
    by_hand = tmp_path / "cifar-10-python.tar.gz"
    by_hand.write_bytes(GOOD[:-1])
    assert_fails(tmp_path, f"{by_hand} has the md5")
    by_hand.write_bytes(GOOD)
    get("cifar10", tmp_path)
    assert (tmp_path / "cifar-10-batches-py" / "data").read_bytes() == NOISE
    assert by_hand.exists()  # it is the user's


def test_a_server_that_closes_every_connection_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def hang_up() -> None:
            for _ in range(download.TRIES):
                listener.accept()[0].close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        no_network(monkeypatch)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/cifar-10-python.tar.gz"
        monkeypatch.setitem(SOURCES, "cifar10", SOURCES["cifar10"]._replace(url=url))
        assert_fails(tmp_path, url)
        thread.join(timeout=5)
        assert not thread.is_alive()


def test_a_decompression_bomb_is_rejected(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    offer(monkeypatch, server, archive({"cifar-10-batches-py/zeros": bytes(20_000_000)}))
    path = tmp_path / "cifar-10-python.tar.gz.part"
    assert_fails(tmp_path, str(path), "exceeds")
    assert list(tmp_path.iterdir()) == [path]


def test_an_archive_with_paths_outside_its_folder_is_rejected(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    offer(monkeypatch, server, archive({"cifar-10-batches-py/data": b"", "../../evil": b"x"}))
    assert_fails(tmp_path / "deep" / "data", "../../evil")
    assert not list(tmp_path.rglob("evil"))
    assert not (tmp_path / "deep/data/cifar-10-batches-py").exists()


def test_an_intact_folder_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    no_network(monkeypatch)
    (tmp_path / "cifar-10-batches-py").mkdir()
    monkeypatch.setattr(download, "check", lambda name, root: Findings("", []))
    assert get("cifar10", tmp_path) == tmp_path / "cifar-10-batches-py"


def test_a_damaged_folder_is_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    no_network(monkeypatch)
    mine = tmp_path / "cifar-10-batches-py" / "data_batch_1"
    mine.parent.mkdir()
    mine.write_text("mine")
    assert_fails(tmp_path, f"{mine.parent} exists already")
    assert mine.read_text() == "mine"


def test_an_unwritable_folder_is_an_error(server: Server, tmp_path: Path):
    (tmp_path / "file").write_text("")
    assert_fails(tmp_path / "file" / "data", f"{tmp_path / 'file'}", "could not be written")


def test_two_downloads_at_once_are_an_error_for_the_second(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The second one gets an error, and does not disturb the first."""
    unpacking, go_on = threading.Event(), threading.Event()

    def slow(*arguments: Any) -> None:
        unpacking.set()
        assert go_on.wait(20)
        unpack(*arguments)

    monkeypatch.setattr(download, "unpack", slow)
    first = threading.Thread(target=get, args=("cifar10", tmp_path))
    first.start()
    assert unpacking.wait(20)
    assert_fails(tmp_path, "another process")
    go_on.set()
    first.join()
    assert unpacked(tmp_path)
    assert len(server.asked) == 1


def test_the_lock_of_a_killed_process_is_ignored(server: Server, tmp_path: Path):
    (tmp_path / ".cifar-10-python.tar.gz.lock").touch()
    get("cifar10", tmp_path)
    assert unpacked(tmp_path)


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(UserError, match="did you mean 'cifar100'"):
        get("cifar1000", Path("data"))


def test_every_source_has_an_archive_and_a_checksum():
    assert {source.archive for source in SOURCES.values()} == {
        "cifar-10-python.tar.gz",
        "cifar-100-python.tar.gz",
        "tiny-imagenet-200.zip",
        "CIFAR-10-C.tar",
        "CIFAR-100-C.tar",
    }
    assert all(len(source.md5) == 32 for source in SOURCES.values())
