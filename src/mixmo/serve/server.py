"""Run the service until it is stopped."""

import contextlib
import ipaddress
import socket
import time
from collections.abc import Callable
from typing import Any

import uvicorn
from fastapi import FastAPI

from mixmo.utils.errors import UserError

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
SHORTEST_TOKEN = 16
TICKS = 3  # of uvicorn, ten in a second: in which it reads all that has arrived
GRACE = 10  # seconds for active requests to complete at shutdown


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches the address.

    >>> [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "::", "example.org")]
    [True, True, True, False, False, False]
    """
    if host == "localhost":
        return True
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


def check_exposure(host: str, token: str) -> None:
    """Check that a service that other machines reach has a token."""
    how = "python -c 'import secrets; print(secrets.token_urlsafe())' makes one"
    if not token and not is_loopback(host):
        raise UserError(
            f"{host} is open to other machines; set a token in the environment variable MIXMO_TOKEN ({how})"
        )
    if token and (len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable() or " " in token):
        raise UserError(f"the token must have {SHORTEST_TOKEN} or more ASCII characters without spaces; {how}")


def allowed_hosts(host: str, token: str) -> tuple[str, ...]:
    """Return the allowed values of the Host header; none means any, as a token protects the responses."""
    return () if token else tuple({*LOOPBACK_NAMES, host})


def bind(host: str, port: int) -> socket.socket:
    """Return a socket with an address; port 0 is a free one. It listens when the service starts, not before."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sends small packets at once only if the protocol is named; otherwise each response is 40 ms late.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        return listening
    except (OSError, OverflowError) as error:
        listening.close()
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"cannot listen on {host}, port {port} ({reason}); give another --port or --host") from error


def address(listening: socket.socket) -> str:
    """Return the URL of a socket."""
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


class Server(uvicorn.Server):
    """A uvicorn server that calls back when it is ready, and closes connections that are idle for too long.

    uvicorn alone has no time limit for receiving the headers of a request, or for the client to read the response.

    Args:
        app: The application.
        ready: Called when it listens.
        seconds: Time to receive the headers of a request, and for the client to read a response.
    """

    def __init__(self, app: FastAPI, ready: Callable[[], None] = lambda: None, seconds: float = 30.0) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http="h11",  # limits the size of the headers; httptools keeps any number of them
                ws="none",
                log_level="warning",
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=GRACE,
            )
        )
        self.ready, self.seconds = ready, seconds
        self._waiting: dict[Any, tuple[Any, float, int]] = {}  # connections: last request, since when, ticks since

    async def on_tick(self, counter: int) -> bool:
        self._close_waiting(time.monotonic())
        return await super().on_tick(counter)

    def _close_waiting(self, now: float) -> None:
        """Close the connections that have waited too long for headers, or for their client to read.

        Ticks are counted too: if the service itself was busy, it may have read nothing in the meantime.
        """
        waiting: dict[Any, tuple[Any, float, int]] = {}
        connection: Any  # whichever protocol; it is that of h11
        for connection in self.server_state.connections:
            last = connection.cycle
            if last is None or last.response_complete or connection.transport.is_closing():
                before, since, ticks = self._waiting.get(connection, (last, now, 0))
                waiting[connection] = (last, since, ticks + 1) if before is last else (last, now, 0)
        self._waiting = waiting
        for connection, (_, since, ticks) in waiting.items():
            if ticks >= TICKS and now - since > self.seconds:
                connection.transport.abort()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self.ready()


def run(app: FastAPI, listening: socket.socket, ready: Callable[[], None], seconds: float) -> None:
    """Serve until Ctrl-C or SIGTERM; active requests are completed first."""
    server = Server(app, ready, seconds)
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises the signal again after it has stopped
        server.run(sockets=[listening])
    if not server.started:
        raise UserError("the service could not start; see the lines above")
