"""Checks of every request before it is handled (host, token, number, bytes, time) and headers of every response."""

import asyncio
import logging
import secrets
import time
from collections.abc import Collection
from dataclasses import dataclass

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mixmo.serve.errors import RETRY, RequestError, error_response
from mixmo.serve.settings import Limits
from mixmo.serve.telemetry import Telemetry

PUBLIC_PATHS = ("/", "/health", "/docs", "/openapi.json")  # need no token: they show nothing of the model
PUBLIC_PREFIXES = ("/page/", "/samples/", "/static-offline-docs/")
POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'"
DOCS_POLICY = (  # Swagger UI has an inline script
    "default-src 'none'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'"
)
POLICY_SUFFIX = "; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
DRAIN_FACTOR = 8  # times max_bytes: read and dropped of a request that is too large, so that the client gets the error


@dataclass
class Guard:
    """ASGI middleware.

    Args:
        app: Handles the requests that pass.
        limits: Limits on bytes, time and number of requests.
        token: Token that requests must send; none if empty.
        hosts: Allowed values of the Host header; any if empty. They prevent DNS rebinding: a web page whose own name
            resolves to this machine must not read responses.
        paths: Paths with their own counters.
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
        started, path = time.perf_counter(), str(scope["path"])
        body = Body(self, receive, started + self.limits.max_seconds)
        response = ResponseSender(send, body, DOCS_POLICY if path == "/docs" else POLICY)
        scope.setdefault("state", {})["deadline"] = body.deadline
        self.active += 1
        self.telemetry.active.set(self.active)
        try:
            self.check(scope)
            await self.app(scope, body.receive, response.send)
        except RequestError as error:
            await error_response(error)(scope, receive, response.send)
        except (ClientDisconnect, UnreadError):
            pass
        except asyncio.CancelledError:  # the grace period of the shutdown is over; uvicorn would log a traceback
            if not response.status:
                await error_response(stopping())(scope, receive, response.send)
        except Exception:  # a bug: the service goes on
            logging.getLogger("mixmo.serve").exception("%s %s failed", scope["method"], ascii(path))
            if not response.status:
                failure = RequestError(500, "internal error; the log of the service has the traceback")
                await error_response(failure)(scope, receive, response.send)
        finally:
            self.active -= 1
            self.held -= body.held
            self.telemetry.active.set(self.active)
            known = path if path in self.paths else "other"
            self.telemetry.requests.labels(scope["method"][:8], known, response.status).inc()
            self.telemetry.seconds.labels(known).observe(time.perf_counter() - started)

    def check(self, scope: Scope) -> None:
        """Raise `RequestError` for a request that its headers are enough to reject."""
        headers, path = Headers(scope=scope), str(scope["path"])
        host = headers.get("host", "").rpartition(":")[0] or headers.get("host", "")
        if self.hosts and host.strip("[]") not in self.hosts and headers.get("host", "").strip("[]") not in self.hosts:
            raise RequestError(400, f"the Host header is not allowed; use {' or '.join(sorted(self.hosts))}")
        if self.token and path not in PUBLIC_PATHS and not path.startswith(PUBLIC_PREFIXES):
            scheme, _, given = headers.get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not secrets.compare_digest(given.strip().encode(), self.token.encode()):
                raise RequestError(
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
        """Read the rest of the body, within limits: many clients read the response only after sending all of it."""
        try:
            while not self.complete and not self.late and self.bytes < DRAIN_FACTOR * self.limits.max_bytes:
                await self._next()
        except RequestError:
            return

    async def _next(self) -> Message:
        if self.complete or self.late:  # the next message is the disconnection
            return await self._receive()
        try:
            async with asyncio.timeout(max(0.0, self.deadline - time.perf_counter())):
                message = await self._receive()
        except TimeoutError:
            self.late = True
            seconds = self.limits.max_seconds
            raise RequestError(408, f"the request was not received within {seconds:g} seconds; send faster") from None
        self.bytes += len(message.get("body", b""))
        self.complete = message["type"] == "http.disconnect" or not message.get("more_body", False)
        return message


class ResponseSender:
    """Adds the common headers to a response and sends it; an error first waits for the rest of the request."""

    def __init__(self, send: Send, body: Body, policy: str) -> None:
        self._send, self.body, self.policy = send, body, policy
        self.status = 0

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers["Content-Security-Policy"] = self.policy + POLICY_SUFFIX
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
    """The client does not read the response."""


def busy(load: str) -> RequestError:
    return RequestError(429, f"the service already has {load}; retry in a second", RETRY)


def stopping() -> RequestError:
    return RequestError(503, "the service is shutting down; restart it and send the request again")


def too_long(limits: Limits) -> RequestError:
    return RequestError(413, f"the request has more than {limits.max_bytes:,} bytes; send fewer or smaller images")
