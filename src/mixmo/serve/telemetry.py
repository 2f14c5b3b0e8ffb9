"""Counters and latencies of the service, in the format of Prometheus."""

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
IMAGES = (1, 2, 4, 8, 16, 32, 64, 128)
TYPE = CONTENT_TYPE_PLAIN_0_0_4


class Telemetry:
    """What GET /metrics shows. Each service has its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        made: dict[str, Any] = {"registry": self.registry}
        labels = ("method", "path", "status")
        self.requests = Counter("mixmo_requests", "Requests with a response.", labels, **made)
        self.seconds = Histogram("mixmo_request_seconds", "Latency of a request.", ("path",), buckets=SECONDS, **made)
        self.active = Gauge("mixmo_requests_active", "Active requests.", **made)
        self.images = Counter("mixmo_images", "Predicted images.", **made)
        self.batch = Histogram("mixmo_batch_images", "Images per forward pass.", buckets=IMAGES, **made)
        self.network = Histogram("mixmo_network_seconds", "Time of a forward pass.", buckets=SECONDS, **made)
        self.wait = Histogram("mixmo_wait_seconds", "Time of a request in the queue.", buckets=SECONDS, **made)
        self.queue = Gauge("mixmo_queue_images", "Images in the queue.", **made)

    def batched(self, images: int, seconds: float, waits: list[float]) -> None:
        """Count a forward pass."""
        for wait in waits:
            self.wait.observe(wait)
        if images:
            self.images.inc(images)
            self.batch.observe(images)
            self.network.observe(seconds)

    def text(self) -> bytes:
        return generate_latest(self.registry)
