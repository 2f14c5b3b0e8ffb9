"""Downloads against a real HTTP server on 127.0.0.1 that misbehaves on demand."""

import hashlib
import io
import itertools
import socket
import tarfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from unittest.mock import Mock

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
    pause = 0.0  # seconds before each byte
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
        if server.pause:
            with suppress(OSError):
                for place in range(start, len(body)):
                    self.wfile.write(body[place : place + 1])
                    time.sleep(server.pause)
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


def refused(to: Path, *phrases: str) -> None:
    with pytest.raises(UserError) as caught:
        get("cifar10", to)
    for phrase in phrases:
        assert phrase in str(caught.value)


def test_fetched_and_unpacked(server: Server, tmp_path: Path):
    assert get("cifar10", tmp_path / "new" / "data") == tmp_path / "new" / "data" / "cifar-10-batches-py"
    assert unpacked(tmp_path / "new" / "data")
    assert server.asked == [None]


def test_without_a_length(server: Server, tmp_path: Path):
    server.chunked = True
    get("cifar10", tmp_path)
    assert unpacked(tmp_path)


def test_a_cut_connection_goes_on_where_it_ended(server: Server, tmp_path: Path, works: list[Work]):
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
def test_killed_between_two_steps_the_same_command_goes_on(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
):
    """Also if what came was damaged, and nobody had looked yet: it must not pass for an archive put there by hand."""

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    server.content = GOOD if step == "unpack" else GOOD[:-9] + b"x" * 9
    with monkeypatch.context() as patched:
        patched.setattr(download, step, killed)
        with pytest.raises(KeyboardInterrupt):
            get("cifar10", tmp_path)
    server.content = GOOD
    if step == "md5":
        refused(tmp_path, "was deleted from")
    get("cifar10", tmp_path)
    assert (tmp_path / "cifar-10-batches-py" / "data").read_bytes() == NOISE


def test_cut_too_often_keeps_the_part_for_the_next_call(server: Server, tmp_path: Path):
    server.cut_after, server.cuts = 1_000, download.TRIES
    part = tmp_path / "cifar-10-python.tar.gz.part"
    refused(tmp_path, SOURCES["cifar10"].url, f"still {download.TRIES} times; {part} keeps what came", "goes on")
    assert part.stat().st_size == 1_000 * download.TRIES
    get("cifar10", tmp_path)
    assert unpacked(tmp_path)
    assert server.asked[-1] == f"bytes={1_000 * download.TRIES}-"


def test_an_error_of_the_server_keeps_the_part(server: Server, tmp_path: Path):
    part = tmp_path / "cifar-10-python.tar.gz.part"
    part.write_bytes(GOOD[:1_000])
    server.status = 503
    refused(tmp_path, "answered 503")
    assert part.read_bytes() == GOOD[:1_000]
    server.status = 200
    get("cifar10", tmp_path)
    assert unpacked(tmp_path)
    assert server.asked == ["bytes=1000-"] * 2


def test_long_is_not_slow(monkeypatch: pytest.MonkeyPatch):
    """Twenty seconds a block, and the least that must come in thirty; a connection that is lost then is a cut one."""
    clock = itertools.count(0, 20)
    monkeypatch.setattr(download, "time", Mock(monotonic=lambda: next(clock)))
    block = b"x" * (download.SLOWEST // 2)
    coming = download._blocks(Mock(read1=Mock(side_effect=[*[block] * 10, ConnectionResetError])))
    assert [next(coming) for _ in range(10)] == [block] * 10
    with pytest.raises(download._CutError):
        next(coming)


def test_nearly_standing_still_is_given_up(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A byte now and then never takes TIMEOUT seconds, and would take years; what came is kept."""
    monkeypatch.setattr(download, "TIMEOUT", 0.2)
    server.pause = 0.02
    refused(tmp_path, f"nearly stood still {download.TRIES} times", "goes on from there")
    assert 0 < (tmp_path / "cifar-10-python.tar.gz.part").stat().st_size < 1000
    server.pause = 0.0
    get("cifar10", tmp_path)
    assert unpacked(tmp_path)


def test_more_than_can_be_right_is_not_kept(server: Server, tmp_path: Path):
    server.endless = True
    refused(tmp_path, "sent more than the 1,000,000 bytes that can be right, and what came was deleted; try later")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("length", ["abc", "-5", "1e9"])
def test_a_length_that_is_no_number(server: Server, tmp_path: Path, length: str):
    server.length = length
    get("cifar10", tmp_path)
    assert unpacked(tmp_path)


def test_a_redirection_that_never_ends_is_one_sentence(server: Server, tmp_path: Path):
    server.redirect = True
    refused(tmp_path, "answered 302", "infinite loop", "by hand")
    with pytest.raises(UserError) as caught:
        get("cifar10", tmp_path)
    assert "\n" not in str(caught.value)


def test_a_server_without_ranges_starts_again(server: Server, tmp_path: Path):
    server.ranges_honoured, server.cut_after, server.cuts = False, 1_000, 1
    get("cifar10", tmp_path)
    assert unpacked(tmp_path)


def test_another_range_than_was_asked_for_is_not_appended(server: Server, tmp_path: Path):
    server.whole_range, server.cut_after, server.cuts = True, 1_000, 1
    get("cifar10", tmp_path)
    assert unpacked(tmp_path)
    assert server.asked == [None, "bytes=1000-"]


def test_a_server_that_does_not_answer_is_given_up(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(download, "TIMEOUT", 0.05)
    server.silence = 2.0
    refused(tmp_path, f"nearly stood still {download.TRIES} times", "by hand")
    assert len(server.asked) == download.TRIES


def test_a_complete_part(server: Server, tmp_path: Path):
    """The process was killed between the last byte and the rename."""
    (tmp_path / "cifar-10-python.tar.gz.part").write_bytes(GOOD)
    get("cifar10", tmp_path)
    assert unpacked(tmp_path)
    assert server.asked == [f"bytes={len(GOOD)}-"]


def test_a_part_that_is_too_long_starts_again(server: Server, tmp_path: Path):
    (tmp_path / "cifar-10-python.tar.gz.part").write_bytes(GOOD + b"more")
    get("cifar10", tmp_path)
    assert unpacked(tmp_path)
    assert server.asked == [f"bytes={len(GOOD) + 4}-", None]


def test_a_part_of_another_file_is_found_by_its_checksum(server: Server, tmp_path: Path):
    (tmp_path / "cifar-10-python.tar.gz.part").write_bytes(b"another file")
    refused(tmp_path, "has the md5", "try again")
    assert list(tmp_path.iterdir()) == []
    get("cifar10", tmp_path)
    assert unpacked(tmp_path)


def test_wrong_checksum(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    offer(monkeypatch, server, GOOD, md5="0" * 32)
    found = hashlib.md5(GOOD).hexdigest()
    where = tmp_path / "cifar-10-python.tar.gz.part"
    refused(tmp_path, SOURCES["cifar10"].url, f"md5 {found} instead of {'0' * 32}", f"deleted from {where}; try again")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("status", [404, 403, 503])
def test_http_errors(server: Server, tmp_path: Path, status: int):
    server.status = status
    refused(
        tmp_path,
        f"{SOURCES['cifar10'].url} answered {status} ",
        f"put cifar-10-python.tar.gz into {tmp_path} by hand, then `mixmo data get cifar10 --to {tmp_path}`",
    )


def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """A port at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    url = f"http://127.0.0.1:{port}/cifar-10-python.tar.gz"
    monkeypatch.setenv("no_proxy", "*")
    digest = hashlib.md5(GOOD).hexdigest()
    monkeypatch.setitem(SOURCES, "cifar10", Source(url, digest, "cifar-10-batches-py", 5, 1_000_000))


def test_no_network_then_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    no_network(monkeypatch)
    refused(
        tmp_path,
        f"{SOURCES['cifar10'].url} cannot be reached",
        "is there a network?",
        f"put cifar-10-python.tar.gz into {tmp_path} by hand, then `mixmo data get cifar10 --to {tmp_path}`",
    )
    by_hand = tmp_path / "cifar-10-python.tar.gz"
    by_hand.write_bytes(GOOD[:-1])
    refused(tmp_path, f"{by_hand} has the md5", "delete it and fetch it again from")
    by_hand.write_bytes(GOOD)
    get("cifar10", tmp_path)
    assert (tmp_path / "cifar-10-batches-py" / "data").read_bytes() == NOISE
    assert by_hand.exists()  # it is the user's


def test_a_server_that_hangs_up_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def hang_up() -> None:
            for _ in range(download.TRIES):
                listener.accept()[0].close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        no_network(monkeypatch)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/cifar-10-python.tar.gz"
        monkeypatch.setitem(SOURCES, "cifar10", SOURCES["cifar10"]._replace(url=url))
        refused(tmp_path, url)
        thread.join(timeout=5)
        assert not thread.is_alive()


def test_archive_bomb(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    offer(monkeypatch, server, archive({"cifar-10-batches-py/zeros": bytes(20_000_000)}))
    path = tmp_path / "cifar-10-python.tar.gz"
    refused(tmp_path, f"{path} was not unpacked", "exceeds the 5 members and 1,000,000 bytes", "delete it")
    assert list(tmp_path.iterdir()) == [path]


def test_path_traversal(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    offer(monkeypatch, server, archive({"cifar-10-batches-py/data": b"", "../../evil": b"x"}))
    refused(tmp_path / "deep" / "data", "'../../evil' would leave the folder", "delete it")
    assert not list(tmp_path.rglob("evil"))
    assert not (tmp_path / "deep/data/cifar-10-batches-py").exists()


def test_what_is_there_and_right_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    no_network(monkeypatch)
    (tmp_path / "cifar-10-batches-py").mkdir()
    monkeypatch.setattr(download, "check", lambda name, root: Findings("", []))
    assert get("cifar10", tmp_path) == tmp_path / "cifar-10-batches-py"


def test_what_is_there_and_wrong_is_never_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    no_network(monkeypatch)
    mine = tmp_path / "cifar-10-batches-py" / "data_batch_1"
    mine.parent.mkdir()
    mine.write_text("mine")
    refused(tmp_path, f"{mine.parent} exists already and is not right", f"delete {mine.parent}, and `mixmo data get")
    assert mine.read_text() == "mine"


def test_a_folder_that_cannot_be_written(server: Server, tmp_path: Path):
    (tmp_path / "file").write_text("")
    refused(tmp_path / "file" / "data", f"{tmp_path / 'file'}", "cannot be written", "choose another folder")


def test_two_at_once(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The second is sent away in one sentence, and disturbs the first neither while it fetches nor while it unpacks."""
    unpacking, go_on = threading.Event(), threading.Event()

    def slow(*arguments: Any) -> None:
        unpacking.set()
        assert go_on.wait(20)
        unpack(*arguments)

    monkeypatch.setattr(download, "unpack", slow)
    first = threading.Thread(target=get, args=("cifar10", tmp_path))
    first.start()
    assert unpacking.wait(20)
    refused(tmp_path, f"another process is getting cifar10 into {tmp_path}; wait until it has ended")
    go_on.set()
    first.join()
    assert unpacked(tmp_path)
    assert len(server.asked) == 1


def test_a_lock_that_a_killed_process_left(server: Server, tmp_path: Path):
    (tmp_path / ".cifar-10-python.tar.gz.lock").touch()
    get("cifar10", tmp_path)
    assert unpacked(tmp_path)


def test_unknown():
    with pytest.raises(UserError, match="unknown data set to fetch 'cifar1000'; did you mean 'cifar100'"):
        get("cifar1000", Path("data"))


def test_sources():
    assert {source.archive for source in SOURCES.values()} == {
        "cifar-10-python.tar.gz",
        "cifar-100-python.tar.gz",
        "tiny-imagenet-200.zip",
        "CIFAR-10-C.tar",
        "CIFAR-100-C.tar",
    }
    assert all(len(source.md5) == 32 for source in SOURCES.values())
