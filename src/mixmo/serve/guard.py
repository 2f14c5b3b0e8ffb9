"""What every request passes first: host, token, number of requests, bytes, time; and what every answer carries."""

import asyncio
import logging
import secrets
import time
from collections.abc import Collection
from dataclasses import dataclass

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mixmo.serve.errors import RETRY, Refused, error_response
from mixmo.serve.settings import Limits
from mixmo.serve.telemetry import Telemetry

OPEN = ("/", "/health", "/docs", "/openapi.json")  # without a token: they say nothing of the model
OPEN_BELOW = ("/page/", "/samples/", "/static-offline-docs/")
POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'"
DOCS_POLICY = (  # Swagger UI has its start in the page
    "default-src 'none'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'"
)
ENDED = "; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
DRAINED = 8  # times the limit of bytes: what is read of a request that is too large, so that the client hears of it


@dataclass
class Guard:
    """ASGI middleware.

    Args:
        app: What answers the requests that pass.
        limits: Of bytes, time and requests.
        token: Which requests must carry, unless it is empty.
        hosts: Names that the service may be called by, unless there are none: a web page that has its own name point
            to this machine (DNS rebinding) must not read answers.
        paths: Those that are counted by name.
        telemetry: Counts requests.
    """

    app: ASGIApp
    limits: Limits
    token: str
    hosts: Collection[str]
    paths: Collection[str]
    telemetry: Telemetry
    active: int = 0  # requests
    held: int = 0  # bytes of their bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun, path = time.perf_counter(), str(scope["path"])
        body = Body(self, receive, begun + self.limits.max_seconds)
        answer = Answer(send, body, DOCS_POLICY if path == "/docs" else POLICY)
        scope.setdefault("state", {})["deadline"] = body.deadline
        self.active += 1
        self.telemetry.active.set(self.active)
        try:
            self.check(scope)
            await self.app(scope, body.receive, answer.send)
        except Refused as error:
            await error_response(error)(scope, receive, answer.send)
        except (ClientDisconnect, UnreadError):
            pass
        except asyncio.CancelledError:  # the service is being stopped, and its grace is over; uvicorn would log it
            if not answer.status:
                await error_response(stopping())(scope, receive, answer.send)
        except Exception:  # a bug: the service goes on
            logging.getLogger("mixmo.serve").exception("%s %s failed", scope["method"], ascii(path))
            if not answer.status:
                failure = Refused(500, "the service failed on this request; its log says why")
                await error_response(failure)(scope, receive, answer.send)
        finally:
            self.active -= 1
            self.held -= body.held
            self.telemetry.active.set(self.active)
            known = path if path in self.paths else "other"
            self.telemetry.requests.labels(scope["method"][:8], known, answer.status).inc()
            self.telemetry.seconds.labels(known).observe(time.perf_counter() - begun)

    def check(self, scope: Scope) -> None:
        """Raise `Refused` for a request whose head is enough to reject it."""
        headers, path = Headers(scope=scope), str(scope["path"])
        host = headers.get("host", "").rpartition(":")[0] or headers.get("host", "")
        if self.hosts and host.strip("[]") not in self.hosts and headers.get("host", "").strip("[]") not in self.hosts:
            raise Refused(400, f"the service is not called by this host name; use {' or '.join(sorted(self.hosts))}")
        if self.token and path not in OPEN and not path.startswith(OPEN_BELOW):
            scheme, _, given = headers.get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not secrets.compare_digest(given.strip().encode(), self.token.encode()):
                raise Refused(
                    401,
                    "the token is missing or wrong; send it as 'Authorization: Bearer TOKEN'",
                    {"WWW-Authenticate": "Bearer"},
                )
        if scope["method"] == "POST" and self.active > self.limits.max_requests:
            raise busy(f"{self.limits.max_requests} requests")
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length) > self.limits.max_bytes:
            raise too_long(self.limits)


class Body:
    """Receives the body of a request within limits of bytes and time."""

    def __init__(self, guard: Guard, receive: Receive, deadline: float) -> None:
        self.guard, self.limits, self.deadline, self._receive = guard, guard.limits, deadline, receive
        self.bytes, self.held, self.complete, self.late = 0, 0, False, False

    async def receive(self) -> Message:
        message = await self._next()
        if self.bytes > self.limits.max_bytes:
            raise too_long(self.limits)
        new = self.bytes - self.held
        if self.guard.held + new > self.limits.max_held_bytes:
            raise busy(f"{self.limits.max_held_bytes:,} bytes of requests")
        self.guard.held, self.held = self.guard.held + new, self.bytes
        return message

    async def drain(self) -> None:
        """Read what is left, within limits: many clients read no answer before they have sent all."""
        try:
            while not self.complete and not self.late and self.bytes < DRAINED * self.limits.max_bytes:
                await self._next()
        except Refused:
            return

    async def _next(self) -> Message:
        if self.complete or self.late:  # then it is a disconnection that is waited for
            return await self._receive()
        try:
            async with asyncio.timeout(max(0.0, self.deadline - time.perf_counter())):
                message = await self._receive()
        except TimeoutError:
            self.late = True
            seconds = self.limits.max_seconds
            raise Refused(408, f"the request did not arrive within {seconds:g} seconds; send it faster") from None
        self.bytes += len(message.get("body", b""))
        self.complete = message["type"] == "http.disconnect" or not message.get("more_body", False)
        return message


class Answer:
    """Sends an answer with the headers that all have; one that is early waits until the request has arrived."""

    def __init__(self, send: Send, body: Body, policy: str) -> None:
        self._send, self.body, self.policy = send, body, policy
        self.status = 0

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers["Content-Security-Policy"] = self.policy + ENDED
            headers["X-Content-Type-Options"] = "nosniff"
            headers["Referrer-Policy"] = "no-referrer"
            headers.setdefault("Cache-Control", "no-store")
            if self.status >= 400:
                await self.body.drain()
                if not self.body.complete:
                    headers["Connection"] = "close"
        try:
            async with asyncio.timeout(self.body.limits.max_seconds):
                await self._send(message)
        except TimeoutError:
            raise UnreadError from None


class UnreadError(Exception):
    """The client does not read its answer."""


def busy(with_what: str) -> Refused:
    return Refused(429, f"{with_what} are being worked on; try again in a second", RETRY)


def stopping() -> Refused:
    return Refused(503, "the service is being stopped; start it again")


def too_long(limits: Limits) -> Refused:
    return Refused(413, f"the request has more than {limits.max_bytes:,} bytes; send fewer or smaller images")
