"""A live page of all runs below a folder, for browsers on this machine. It only reads files.

One thread checks the folder every few seconds; each open page receives the changes as server-sent events.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from mixmo.reports import vega
from mixmo.reports.build import report
from mixmo.reports.curve_charts import EPOCH
from mixmo.reports.listing import Listing
from mixmo.reports.page import read_template
from mixmo.utils.errors import UserError, first_line

HOST = "127.0.0.1"
LOOPBACK = ("127.0.0.1", "localhost")  # allowed in the Host header
STREAMS = 64  # open pages
QUIET = 15.0  # seconds between keep-alive messages
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; "
    "connect-src 'self'; img-src data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)


class Watcher:
    """The current runs of a folder, each with the version in which it changed last."""

    def __init__(self, folder: Path, every: float) -> None:
        self.listing, self.every = Listing(folder), every
        self.rows: dict[str, tuple[int, dict[str, Any]]] = {}  # by name: version, content
        self.gone: dict[str, int] = {}  # names of runs that were removed: version
        self.version, self.stopped = 0, False
        self.paths: dict[str, Path] = {}
        self.changed = threading.Condition()

    def look(self) -> None:
        """Read the folder once."""
        rows = {row.run: row.to_dict() for row in self.listing.read()}
        with self.changed:
            new = {name: row for name, row in rows.items() if self.rows.get(name, (0, None))[1] != row}
            lost = self.rows.keys() - rows.keys()
            self.paths = self.listing.paths()
            if not new and not lost and self.version:
                return
            self.version += 1
            self.gone = {name: version for name, version in self.gone.items() if name not in rows}
            self.gone |= dict.fromkeys(lost, self.version)
            before = {name: kept for name, kept in self.rows.items() if name in rows}
            self.rows = before | {name: (self.version, row) for name, row in new.items()}
            self.changed.notify_all()

    def keep_looking(self) -> None:
        while not self.stopped:
            time.sleep(self.every)
            try:
                self.look()
            except OSError:  # such as of a disk that is gone for a moment
                continue

    def since(self, version: int) -> tuple[int, dict[str, Any]]:
        """Wait for a change after a version, for a while; return the new version and what changed."""
        with self.changed:
            self.changed.wait_for(lambda: self.version > version or self.stopped, QUIET)
            rows = [row for changed, row in self.rows.values() if changed > version]
            gone = [name for name, changed in self.gone.items() if changed > version]
            return self.version, {"rows": rows, "gone": gone}

    def stop(self) -> None:
        with self.changed:
            self.stopped = True
            self.changed.notify_all()


class Server(ThreadingHTTPServer):
    """A thread for each connection; broken connections are ignored."""

    daemon_threads = True

    def __init__(self, port: int, watcher: Watcher) -> None:
        super().__init__((HOST, port), Handler)
        self.watcher, self.streams = watcher, threading.Semaphore(STREAMS)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing: the browser has disconnected."""


class Handler(BaseHTTPRequestHandler):
    """Requests of one connection: pages, the event stream, reports."""

    server: Server
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "mixmo", ""

    def do_GET(self) -> None:
        try:
            self.route()
        except UserError as error:
            self.reject(HTTPStatus.UNPROCESSABLE_ENTITY, str(error))
        except (BrokenPipeError, ConnectionResetError):  # the browser has disconnected
            self.close_connection = True
        except Exception as error:
            self.reject(HTTPStatus.INTERNAL_SERVER_ERROR, f"Internal error: {first_line(error)}")

    def route(self) -> None:
        path, _, query = self.path.partition("?")
        pages: dict[str, Callable[[], None]] = {
            "/": lambda: self.respond(watch_page(), "text/html"),
            "/vega.js": lambda: self.respond(vega.javascript(), "text/javascript"),
            "/events": self.stream,
            "/report": lambda: self.report(parse_qs(query).get("run", [])),
        }
        if not self.addressed():
            self.reject(HTTPStatus.FORBIDDEN, "Only browsers on this machine may open this page.")
        elif path not in pages:
            self.reject(HTTPStatus.NOT_FOUND, "Page not found.")
        else:
            pages[path]()

    def addressed(self) -> bool:
        """Whether the Host header names this machine; otherwise the request may be DNS rebinding."""
        host = self.headers.get("Host", "").lower()
        return host.removesuffix(f":{self.server.server_address[1]}") in LOOPBACK

    def respond(self, text: str, kind: str, status: HTTPStatus = HTTPStatus.OK) -> None:
        content = text.encode()
        self.begin(status, kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def begin(self, status: HTTPStatus, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Content-Security-Policy", POLICY)

    def reject(self, status: HTTPStatus, sentence: str) -> None:
        self.respond(f"{sentence}\n", "text/plain", status)

    def report(self, names: list[str]) -> None:
        """Send the report of listed runs; other names are ignored."""
        listed = self.server.watcher.paths
        paths = [listed[name] for name in dict.fromkeys(names) if name in listed]
        if not paths:
            self.reject(HTTPStatus.NOT_FOUND, "No such run in the folder.")
        else:
            self.respond(report(*paths).html, "text/html")

    def stream(self) -> None:
        """Send the runs, then their changes, until the browser disconnects."""
        if not self.server.streams.acquire(blocking=False):
            self.reject(HTTPStatus.SERVICE_UNAVAILABLE, f"{STREAMS} pages are open already; close one.")
            return
        try:
            self.close_connection = True
            self.begin(HTTPStatus.OK, "text/event-stream")
            self.end_headers()
            version, watcher = -1, self.server.watcher
            while not watcher.stopped:
                seen, changes = watcher.since(version)
                event = f"data: {json.dumps(changes)}\n\n" if seen > version else ": still here\n\n"
                self.wfile.write(event.encode())
                self.wfile.flush()
                version = seen
        finally:
            self.server.streams.release()

    def log_message(self, *_: Any) -> None:
        """Print nothing: the terminal is for the user."""


class Watching:
    """A server that runs: `address` to open, `wait` until Ctrl-C."""

    def __init__(self, server: ThreadingHTTPServer, thread: threading.Thread) -> None:
        self.address, self.thread = f"http://{HOST}:{server.server_address[1]}/", thread

    def wait(self) -> None:
        while self.thread.is_alive():
            self.thread.join(1.0)


@contextmanager
def serve(folder: Path, port: int = 0, every: float = 2.0) -> Iterator[Watching]:
    """Serve the page on the loopback address until the block ends.

    Raises:
        UserError: If the port is taken.
    """
    watcher = Watcher(folder, every)
    try:
        server = Server(port, watcher)
    except OSError as error:
        raise UserError(f"port {port} cannot be used ({error.strerror or error}); give another --port") from error
    works: list[Callable[[], object]] = [server.serve_forever, watcher.keep_looking]
    if vega.installed():
        works.append(vega.javascript)  # before the first page asks for it
    threads = [threading.Thread(target=work, daemon=True) for work in works]
    watcher.look()
    for thread in threads:
        thread.start()
    try:
        yield Watching(server, threads[0])
    finally:
        watcher.stop()
        server.shutdown()
        server.server_close()


def watch_page() -> str:
    """Return the page, which is the same for every folder."""
    kinds = {"top1": "Top1 %", "nll": "NLL (nats)", "loss": "training loss"}
    charts = {name: vega.lines([], EPOCH, vega.axis(title), "curves", 240) for name, title in kinds.items()}
    content = json.dumps({"charts": charts if vega.installed() else {}, "colours": vega.COLOURS})
    text = str(read_template("watch.html")).replace(
        "/*STYLE*/", read_template("report.css") + read_template("watch.css")
    )
    return text.replace("/*CONTENT*/", content.replace("<", "\\u003c")).replace("/*SCRIPT*/", read_template("watch.js"))
