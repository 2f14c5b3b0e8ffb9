"""One thread that runs the network and predicts the images of concurrent requests in one forward pass."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mixmo.serve.backends import Backend
from mixmo.serve.rows import Row, describe


@dataclass(eq=False)
class Job:
    """What a request waits for: rows of its images, or the result of a call."""

    images: Tensor | None  # uint8 (N, H, W, C); None: `call`
    top: int = 0
    call: Callable[[], Any] | None = None
    future: Future[Any] = field(default_factory=Future)
    queued: float = field(default_factory=time.perf_counter)

    @property
    def count(self) -> int:
        return 0 if self.images is None else len(self.images)


class ClosedError(RuntimeError):
    """The service is shutting down."""


class Worker:
    """Dynamic batching of concurrent requests.

    The thread takes all queued images, up to `batch`. It waits up to `window` seconds for another request if one is
    being decoded, or if fewer are queued than were in the service at a time since the last batch was taken: clients
    that send the next request after each response are then all in one batch, not in groups that take turns. A single
    client never waits.

    Args:
        backend: Computes the predictions.
        batch: Images per forward pass.
        window: Longest wait for the next request, in seconds.
        observe: Called after each batch with its images, its seconds and the seconds that each job waited.
    """

    def __init__(
        self, backend: Backend, batch: int, window: float, observe: Callable[[int, float, list[float]], None]
    ) -> None:
        self.backend, self.batch, self.window, self.observe = backend, batch, window, observe
        self.arriving = 0  # requests that have arrived and are not queued yet
        self._running = 0  # requests in the current forward pass
        self._most = 0  # requests at a time (arriving, queued or running) since the last batch was taken
        self._jobs: deque[Job] = deque()
        self._ready = threading.Condition()
        self._closing = False
        self._warm: Future[None] = Future()
        self._thread = threading.Thread(target=self._work, name="mixmo-network", daemon=True)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive() and not self._closing

    @property
    def waiting(self) -> int:
        """Images in the queue."""
        return sum(job.count for job in tuple(self._jobs))

    def start(self) -> None:
        """Start the thread and warm up in it: cuDNN keeps its choices of algorithms per thread."""
        if self.backend.device.type == "cpu":
            # In this thread too: OpenMP then has more threads than cores and lets them sleep between layers instead of
            # spinning. On two busy cores, predictions in the main thread took three times as long.
            self.backend.warm_up()
        self._thread.start()
        self._warm.result()

    def close(self) -> None:
        """Finish what is queued, and end the thread."""
        with self._ready:
            self._closing = True
            self._ready.notify()
        if self._thread.ident is not None:
            self._thread.join()

    @contextmanager
    def expecting(self) -> Iterator[None]:
        """Count a request as arriving while its images are decoded."""
        self.arriving += 1
        self._count()
        try:
            yield
        finally:
            self.arriving -= 1

    def predict(self, images_NHWC: Tensor, top: int) -> Future[list[Row]]:
        """Queue the images of a request; the future gives one row each, with the `top` most probable classes."""
        return self._put(Job(images_NHWC, top))

    def call(self, function: Callable[[], Any]) -> Future[Any]:
        """Queue a function that uses the network."""
        return self._put(Job(None, call=function))

    def _put(self, job: Job) -> Future[Any]:
        with self._ready:
            if self._closing:
                raise ClosedError
            self._jobs.append(job)
            self._count()
            self._ready.notify()
        return job.future

    def _count(self) -> None:
        self._most = max(self._most, self.arriving + len(self._jobs) + self._running)

    def _work(self) -> None:
        try:
            self.backend.warm_up()
        except Exception as error:
            self._warm.set_exception(error)
            return
        self._warm.set_result(None)
        while jobs := self._take():
            running = [job for job in jobs if job.future.set_running_or_notify_cancel()]
            if not running:
                self._running = 0
                continue
            begun = time.perf_counter()
            self._finish(running)
            waits = [begun - job.queued for job in running]
            self.observe(sum(job.count for job in running), time.perf_counter() - begun, waits)

    def _take(self) -> list[Job]:
        """Return the jobs of the next forward pass; none at the end."""
        with self._ready:
            while not self._jobs:
                if self._closing:
                    return []
                self._ready.wait()
            while self.waiting < self.batch and (self.arriving or len(self._jobs) < self._most):
                if not self._ready.wait(self.window):
                    break
            jobs = [self._jobs.popleft()]
            count = jobs[0].count
            while count and self._jobs and 0 < self._jobs[0].count <= self.batch - count:
                jobs.append(self._jobs.popleft())
                count += jobs[-1].count
            self._running, self._most = len(jobs), 0
            self._count()
            return jobs

    def _finish(self, jobs: list[Job]) -> None:
        try:
            results = self._results(jobs)
        except Exception as error:
            self._running = 0
            if len(jobs) == 1:
                jobs[0].future.set_exception(error)
                return
            for job in jobs:  # one of them is the cause; the others must not fail
                self._finish([job])
            return
        self._running = 0  # first: with its response, a client may send the next request
        for job, result in zip(jobs, results, strict=True):
            job.future.set_result(result)

    def _results(self, jobs: list[Job]) -> list[Any]:
        if jobs[0].call is not None:
            return [jobs[0].call()]
        prediction = self.backend.predict(torch.cat([job.images for job in jobs if job.images is not None]))
        rows = describe(prediction, self.backend.about.classes, max(job.top for job in jobs))
        results, start = [], 0
        for job in jobs:
            results.append([row.cut(job.top) for row in rows[start : start + job.count]])
            start += job.count
        return results
