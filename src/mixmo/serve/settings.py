"""Limits of requests, and options of dynamic batching."""

from dataclasses import dataclass, fields

from mixmo.data.decode import MOST_PIXELS
from mixmo.utils.errors import UserError, check_number, check_whole

LARGEST_IMAGE = 178_000_000  # pixels; PIL opens no image of more


@dataclass(frozen=True)
class Limits:
    """Limits of requests, and how many images are predicted in one forward pass."""

    max_bytes: int = 32 * 2**20
    """Bytes of a request."""
    max_images: int = 64
    """Images in a request."""
    max_pixels: int = MOST_PIXELS
    """Pixels of an image, before it is resized."""
    max_requests: int = 128
    """Concurrent requests; more are rejected with status 429."""
    max_held_bytes: int = 256 * 2**20
    """Bytes of all concurrent requests; more are rejected with status 429."""
    max_seconds: float = 30.0
    """Time to receive a request and to respond; also the time for the client to read the response."""
    batch: int | None = None
    """Images per forward pass, over all clients (default: depends on the size of the images)."""
    window_ms: float = 3.0
    """Longest wait for the next concurrent request before a batch is predicted; a single client never waits."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in ("max_seconds", "window_ms"):
                check_number(field.name, value)
                if not 0 <= value < 3600 or (field.name == "max_seconds" and value == 0):
                    raise UserError(f"{field.name} = {value}; give a number above 0, and below an hour")
            elif field.name != "batch" or value is not None:
                check_whole(field.name, value)
        if self.max_pixels > LARGEST_IMAGE:
            raise UserError(f"max_pixels = {self.max_pixels}; give at most {LARGEST_IMAGE}")
