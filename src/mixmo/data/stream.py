"""Image files in place of a tensor of images: decoded into memory if they fit, else read while training.

Worker processes draw no random number, so that resident and streamed training see equal batches.
"""

import signal
import warnings
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from mixmo.data.cache import cached, fingerprint
from mixmo.data.decode import Sample, SkippedImages, decode, decode_all, report, some
from mixmo.data.types import Split
from mixmo.utils import memory
from mixmo.utils.errors import UserError, quoted

NOTHING = -1  # the number of an unused sample: it is not read, its image is black
CPU = torch.device("cpu")


@dataclass(frozen=True, eq=False)
class Files:
    """Images (D, size, size, 3) on disk, with `shape`, `len`, `[numbers]` and `to` like a tensor.

    In training (`read`), a file that cannot be read is replaced by the next readable one of its class; a class without
    any is an error. In scoring (`batches`) it is left out. A warning at the end names them.
    """

    root: Path
    name: str  # of the split, for messages and the cache
    samples: Sequence[Sample]
    labels: Tensor  # (D,) on the CPU
    size: int
    device: torch.device = CPU  # where batches go
    workers: int = 0  # processes that decode; 0: this one does
    unreadable: set[str] = field(default_factory=set)  # found so far, by this and by its parts
    replacements: dict[int, int] = field(default_factory=dict)  # the numbers of files that took the place of others

    @property
    def shape(self) -> torch.Size:
        return torch.Size((len(self.samples), self.size, self.size, 3))

    @property
    def nbytes(self) -> int:
        """Size when decoded."""
        return self.shape.numel()

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, numbers: Tensor) -> "Files":
        """Select some of the files; one that cannot be read is replaced by another of the selection."""
        numbers = numbers.cpu()
        samples = [self.samples[i] for i in numbers.tolist()]
        return replace(self, samples=samples, labels=self.labels[numbers], replacements={})

    def to(self, device: torch.device | str, workers: int | None = None) -> "Files":
        """Return the same files, whose batches will go to `device`."""
        return replace(self, device=torch.device(device), workers=self.workers if workers is None else workers)

    def decoded(self) -> Split:
        """Decode all files that can be read into memory, or map them from the cache."""
        what = f"{self.name} in {self.root}"
        stamp = fingerprint(self.root, self.samples)
        found = cached(self.root, self.name, stamp, self.shape, lambda: decode_all(self.samples, self.size, what))
        report(self.samples, found.kept, what)
        return Split(torch.from_numpy(found.images), self.labels[torch.from_numpy(found.kept)])

    def batches(self, count: int, part: bool = False) -> Generator[Split]:
        """Iterate in order over all files that can be read; see `Split.batches`."""
        kept: list[Tensor] = []

        def pools() -> Iterator[Split]:
            for images, batch, failed in self._decode(torch.arange(len(self)).split(count)):
                whole = torch.ones(len(batch), dtype=torch.bool)
                whole[failed] = False
                kept.append(batch[whole])
                if whole.any() or part:  # processes that score parts must have as many batches
                    yield self._pinned(images[whole] if failed else images, kept[-1])

        with closing(self._ahead(pools())) as ahead:
            yield from ahead
        report(self.samples, torch.cat(kept).numpy(), f"{self.name} in {self.root}", part)

    def read(self, batches: Iterable[Tensor]) -> Generator[Split]:
        """Yield images and labels of each batch of sample numbers, in order, on the device, reading ahead.

        The worker processes live for one pass, so that an interrupted one leaves none behind.
        """
        before = len(self.unreadable)

        def pools() -> Iterator[Split]:
            for images, batch, failed in self._decode(batches):
                for position in failed:
                    images[position] = self._replacement(int(batch[position]))
                yield self._pinned(images, batch.clamp(min=0))

        try:
            with closing(self._ahead(pools())) as ahead:
                yield from ahead
        finally:
            if len(self.unreadable) > before:
                warnings.warn(
                    f"{len(self.unreadable)} of the {len(self)} images of {self.name} in {self.root} could not be read "
                    f"and were replaced by others of their classes: {some(sorted(self.unreadable))}",
                    SkippedImages,
                    stacklevel=2,
                )

    def _pinned(self, images: Tensor, batch: Tensor) -> Split:
        """Add the labels; in page-locked memory if they go to a GPU."""
        labels = self.labels[batch]
        if self.device.type == "cuda":
            return Split(images.pin_memory(), labels.pin_memory())
        return Split(images, labels)

    def _decode(self, batches: Iterable[Tensor]) -> Iterator[tuple[Tensor, Tensor, list[int]]]:
        """Yield the images of each batch, its numbers, and the positions of the images that could not be read."""
        numbers: deque[Tensor] = deque()  # of the batches in the queue

        def paths() -> Iterator[list[str | None]]:
            for batch in batches:
                numbers.append(batch)
                yield [None if i == NOTHING else self.samples[i].path for i in batch.tolist()]

        loader = DataLoader(
            _Decoder(self.size),
            sampler=paths(),  # its "indices" are lists of files
            batch_size=None,
            num_workers=self.workers,
            pin_memory=self.device.type == "cuda",
            worker_init_fn=_start_worker,
        )
        for images, failed in loader:
            yield images, numbers.popleft(), failed

    def _replacement(self, number: int) -> Tensor:
        """Return the next image of the same class that can be read, in place of one that cannot.

        Files that could not be read before are tried last: they may have come back.
        """
        alike = torch.nonzero(self.labels == self.labels[number]).flatten()
        start, failed = int((alike == number).nonzero()), {self.samples[number].path}
        for again in (False, True):
            for step in range(1, len(alike)):
                other = int(alike[(start + step) % len(alike)])
                other = other if again else self.replacements.get(other, other)
                path = self.samples[other].path
                if path in failed or (path in self.unreadable) != again:
                    continue
                try:
                    image = torch.from_numpy(decode(path, self.size).copy())
                except Exception:  # PIL raises nearly anything on a damaged file
                    failed.add(path)
                else:
                    self.unreadable.update(failed)
                    self.replacements[number] = other
                    return image
        what = f"the {len(alike)} images of class {quoted(self.samples[number].label)} in {self.name} of {self.root}"
        paths = some([self.samples[i].path for i in alike.tolist()])
        raise UserError(f"none of {what} can be read ({paths}); check the disk and the files, or remove the class")

    def _ahead(self, pools: Iterator[Split]) -> Generator[Split]:
        """Yield the batches on the device; to a GPU, the next one is copied during the computation.

        The host runs at most two steps ahead of the GPU, or the waiting batches would fill its memory.
        """
        if self.device.type != "cuda":
            yield from pools
            return
        side = torch.cuda.Stream(self.device)
        waiting: deque[tuple[Split, torch.cuda.Event]] = deque()
        computed: deque[torch.cuda.Event] = deque()

        def give() -> Iterator[Split]:
            pool, copied = waiting.popleft()
            current = torch.cuda.current_stream(self.device)
            current.wait_event(copied)
            for tensor in (pool.resident, pool.labels):
                tensor.record_stream(current)  # its memory is reused only after the computation
            yield pool
            computed.append(current.record_event())
            if len(computed) > 1:
                computed.popleft().synchronize()

        for pool in pools:
            with torch.cuda.stream(side):
                onto = Split(*(tensor.to(self.device, non_blocking=True) for tensor in (pool.resident, pool.labels)))
            waiting.append((onto, side.record_event()))
            if len(waiting) > 1:
                yield from give()
        if waiting:
            yield from give()


@dataclass
class _Decoder(Dataset[tuple[Tensor, list[int]]]):
    """The job of a worker: a list of files -> their images, and the positions of those that could not be read."""

    size: int

    def __getitem__(self, paths: list[str | None]) -> tuple[Tensor, list[int]]:
        images = np.zeros((len(paths), self.size, self.size, 3), np.uint8)
        failed = []
        for position, path in enumerate(paths):
            if path is not None:
                try:
                    images[position] = decode(path, self.size)
                except Exception:  # PIL raises nearly anything on a damaged file
                    failed.append(position)
        return torch.from_numpy(images), failed


def _start_worker(_: int) -> None:
    # Ctrl-C reaches every process of the terminal. The main one finishes its step, saves, and ends the workers.
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    warnings.simplefilter("ignore")  # of PIL, on odd metadata


def room(device: torch.device) -> int:
    """Return the bytes of images that may stay in memory: half of the free memory, of the device and of the host."""
    free = memory.free()
    if device.type == "cuda":
        free = min(free, torch.cuda.mem_get_info(device)[0])
    return free // 2
