"""The HTTP API and the page."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, TypeVar

from fastapi import Depends, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPBearer
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse
from starlette.staticfiles import StaticFiles

from mixmo._version import __version__
from mixmo.data.decode import default_workers
from mixmo.inference.preparation import resized_side
from mixmo.serve import schema
from mixmo.serve.backends import Backend
from mixmo.serve.bodies import invalid, read_json, read_uploads
from mixmo.serve.errors import RETRY, RequestError, error_response, quotable
from mixmo.serve.guard import Guard, stopping
from mixmo.serve.images import Upload, prepare, to_png
from mixmo.serve.mixing import Mixing, mix, mixable_masks
from mixmo.serve.settings import Limits
from mixmo.serve.telemetry import TYPE, Telemetry
from mixmo.serve.worker import ClosedError, Worker
from mixmo.utils.errors import UserError, unknown

HERE = Path(__file__).parent
SAMPLES = tuple(sorted(path.name for path in (HERE / "samples").glob("*.jpg")))
DESCRIPTION = """Predictions of an ensemble inside one network: probabilities of the ensemble and of each member, \
uncertainty, conformal sets and selective prediction."""
T = TypeVar("T")
Top = Annotated[
    int, Query(ge=1, le=100_000, description="Most probable classes to list, of the ensemble and each member.")
]
ShowInput = Annotated[bool, Query(description="Return what the network reads of each image, as PNG.")]


def create_app(
    backend: Backend, limits: Limits | None = None, *, token: str = "", hosts: tuple[str, ...] = ()
) -> FastAPI:
    """Return the service of a network as an ASGI application.

    Args:
        backend: The network.
        limits: Limits of requests, and options of batching.
        token: Token that requests must send; none if empty.
        hosts: Allowed values of the Host header; any if empty.

    Raises:
        UserError: If images cannot be prepared for the network.
    """
    resized_side(backend.about)  # or every request would fail
    return Service(backend, limits or Limits(), token, hosts).app


class Service:
    """The routes of one application and their shared state."""

    def __init__(self, backend: Backend, limits: Limits, token: str, hosts: tuple[str, ...]) -> None:
        self.backend, self.limits, self.telemetry = backend, limits, Telemetry()
        batch = limits.batch or backend.batch
        self.worker = Worker(backend, batch, limits.window_ms / 1e3, self.telemetry.batched)
        self.telemetry.queue.set_function(lambda: self.worker.waiting)
        self.pool = ThreadPoolExecutor(default_workers(), "mixmo-decode")
        self.masks, self.not_mixable = _masks(backend)
        self.about_model = self._describe_model()
        self.app = FastAPIOffline(
            title="mixmo", version=__version__, description=DESCRIPTION, redoc_url=None, lifespan=self._lifespan
        )
        self._add_routes([Depends(HTTPBearer(auto_error=False))] if token else [])  # documented here, checked by Guard
        paths = {str(getattr(route, "path", "")) for route in self.app.routes}
        self.app.add_middleware(Guard, limits=limits, token=token, hosts=hosts, paths=paths, telemetry=self.telemetry)

    @asynccontextmanager
    async def _lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        self.worker.start()
        yield
        self.worker.close()
        self.pool.shutdown(cancel_futures=True)

    def _add_routes(self, token: list[Any]) -> None:
        app, get = self.app, schema.error_responses(400, 401)
        post = schema.error_responses(400, 401, 408, 413, 415, 422, 429, 503)
        shared: dict[str, Any] = {"responses": post, "dependencies": token}
        app.post("/predict", response_model=schema.Predictions, openapi_extra=schema.UPLOAD, **shared)(self.predict)
        app.post("/mix", response_model=schema.Mixed, openapi_extra=schema.MIX, **shared)(self.mix)
        app.get("/model", response_model=schema.Model, responses=get, dependencies=token)(self.model)
        app.get("/health", response_model=schema.Health, responses=schema.error_responses(400, 503))(self.health)
        text = {**get, 200: {"content": {"text/plain": {}}}}
        app.get("/metrics", response_class=Response, responses=text, dependencies=token)(self.metrics)
        app.get("/samples/{name}", include_in_schema=False)(self.sample)
        app.get("/", include_in_schema=False)(self.page)
        app.mount("/page", StaticFiles(directory=HERE / "page"))
        app.exception_handler(HTTPException)(_http_error_response)
        app.exception_handler(RequestValidationError)(_query_error_response)
        app.exception_handler(ClosedError)(_closed_response)

    async def predict(self, request: Request, top: Top = 5, input: ShowInput = False) -> Response:
        """Predict images: files of a form, or JSON with base64."""
        uploads = await read_uploads(request, self.limits.max_images)
        images_NHWC, decoded = await self._prepare(request, uploads)
        rows = await self._wait(request, self.worker.predict(images_NHWC, top))
        predictions = [{"name": _name(upload), **row.to_dict()} for upload, row in zip(uploads, rows, strict=True)]
        if input:
            for prediction, image in zip(predictions, images_NHWC, strict=True):
                prediction["input"] = to_png(image)
        return _json({"model": self.backend.name, "predictions": predictions}, decoded)

    async def mix(self, request: Request, top: Top = 5) -> Response:
        """Mix two images in one forward pass, and return what each head predicts."""
        if self.not_mixable is not None:
            raise RequestError(422, self.not_mixable)
        body = await read_json(request, schema.Mixture)
        if body.mask not in self.masks:
            raise RequestError(422, quotable(str(unknown("mask", body.mask, self.masks)), 400))
        images_2HWC, decoded = await self._prepare(request, [Upload(None, image) for image in body.images], True)
        net, mixing = self.backend.mixing_network(), Mixing(body.mask, body.ratio, body.x, body.y, body.seed)
        mixed = await self._wait(
            request, self.worker.call(lambda: mix(net, self.backend.about, images_2HWC, mixing, top))
        )
        return _json(mixed, decoded)

    async def model(self) -> Response:
        """Describe the network, its classes, its calibration and the limits."""
        return _json(self.about_model)

    async def health(self) -> Response:
        """Return status 200 while the service predicts."""
        if not self.worker.alive:
            raise ClosedError
        return _json({"status": "ok"})

    async def metrics(self) -> Response:
        """Return counters and latencies in the text format of Prometheus."""
        return Response(self.telemetry.text(), media_type=TYPE)

    async def page(self) -> Response:
        return FileResponse(HERE / "page" / "index.html")

    async def sample(self, name: str) -> Response:
        if name not in SAMPLES:
            raise RequestError(404, "unknown sample; GET /model lists the samples")
        return FileResponse(HERE / "samples" / name)

    async def _prepare(self, request: Request, uploads: list[Upload], exact: bool = False) -> tuple[Any, float]:
        """Decode in a thread; return the images and the seconds that it took."""
        begun, deadline = time.perf_counter(), request.scope["state"]["deadline"]
        with self.worker.expecting():
            images = await self._wait(
                request,
                self.pool.submit(prepare, uploads, self.backend.about, self.limits.max_pixels, exact, deadline),
            )
        return images, time.perf_counter() - begun

    async def _wait(self, request: Request, future: "Future[T]") -> T:
        """Wait for a thread until the deadline of the request."""
        left = request.scope["state"]["deadline"] - time.perf_counter()
        try:
            async with asyncio.timeout(max(0.0, left)):
                return await asyncio.wrap_future(future)
        except TimeoutError:
            seconds = self.limits.max_seconds
            raise RequestError(
                503, f"no prediction within {seconds:g} seconds; retry when the service has less load", RETRY
            ) from None
        except UserError as error:
            raise RequestError(422, quotable(str(error), 400)) from error

    def _describe_model(self) -> dict[str, Any]:
        backend, about = self.backend, self.backend.about
        calibration = None if about.calibration is None else about.calibration.to_dict()
        return {
            "name": backend.name,
            "runtime": backend.runtime,
            "device": str(backend.device),
            "members": backend.members,
            "classes": list(about.classes or ()),
            "size": list(about.size),
            "dataset": about.dataset,
            "scores": about.scores,
            "calibration": calibration,
            "masks": self.masks,
            "not_mixable_because": self.not_mixable,
            "limits": asdict(self.limits),
            "samples": list(SAMPLES),
            "version": __version__,
        }


def _masks(backend: Backend) -> tuple[list[str], str | None]:
    """Return the masks of POST /mix, or why it cannot be used."""
    try:
        return mixable_masks(backend.mixing_network(), backend.about), None
    except UserError as error:
        return [], str(error)


def _name(upload: Upload) -> str | None:
    return quotable(upload.name, 200) if upload.name else None


def _json(content: dict[str, Any], decoded: float | None = None) -> Response:
    headers = None if decoded is None else {"Server-Timing": f"decode;dur={1e3 * decoded:.2f}"}
    return Response(json.dumps(content), media_type="application/json", headers=headers)


async def _http_error_response(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return error_response(error)


async def _query_error_response(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    return error_response(RequestError(422, invalid(tuple(first["loc"]), first["msg"])))


async def _closed_response(request: Request, error: Exception) -> Response:
    return error_response(stopping())
