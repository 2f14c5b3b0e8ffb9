"""The worker: who is batched with whom, who waits, and what happens on a failure."""

import threading
import time
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import mixmo
from mixmo.serve.backends import Backend
from mixmo.serve.worker import ClosedError, Worker


class Recorded:
    """A backend that records its batches; an image that is all 255 fails."""

    def __init__(self, backend: Backend) -> None:
        self.about, self.device, self.batches, self.gate = backend.about, backend.device, list[int](), threading.Event()
        self.gate.set()

    def warm_up(self) -> None:
        self.warm = threading.current_thread().name

    def predict(self, images_NHWC: Tensor) -> mixmo.Prediction:
        self.gate.wait(5)
        self.batches.append(len(images_NHWC))
        if (images_NHWC == 255).all((1, 2, 3)).any():
            raise RuntimeError("cannot")
        own_N = images_NHWC[:, 0, 0, 0].float()
        return mixmo.Prediction(own_N[None, :, None] * torch.eye(7)[0])


def images(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.uint8)[:, None, None, None].expand(-1, 32, 32, 3)


@pytest.fixture
def made(backend: Backend) -> Iterator[tuple[Worker, Recorded]]:
    recorded = Recorded(backend)
    worker = Worker(recorded, 8, 0.5, lambda *_: None)  # type: ignore[arg-type]
    worker.start()
    yield worker, recorded
    recorded.gate.set()
    worker.close()


def test_a_single_client_never_waits_for_the_window(made: tuple[Worker, Recorded]) -> None:
    worker, recorded = made
    begun = time.perf_counter()
    for _ in range(5):
        worker.predict(images(1), 3).result()
    assert time.perf_counter() - begun < 0.4  # one window is 0.5 s
    assert recorded.batches == [1] * 5


def test_what_is_queued_meanwhile_becomes_one_batch_in_order(made: tuple[Worker, Recorded]) -> None:
    worker, recorded = made
    recorded.gate.clear()
    first = worker.predict(images(1), 1)
    time.sleep(0.05)
    others = [
        worker.predict(images(2, 3), 1),
        worker.predict(images(4), 2),
        worker.predict(images(5, 6, 7, 8, 9, 10), 1),
    ]
    recorded.gate.set()
    rows = [row for future in (first, *others) for row in future.result()]
    assert recorded.batches == [1, 3, 6]  # 3 + 6 images are more than a batch holds
    assert [row.probability for row in rows] == sorted(row.probability for row in rows)
    assert [len(future.result()[0].ensemble) for future in others] == [1, 2, 1]


def test_it_waits_for_a_request_that_is_being_decoded(made: tuple[Worker, Recorded]) -> None:
    worker, recorded = made
    with worker.expecting():
        first = worker.predict(images(1), 1)
        time.sleep(0.05)
        second = worker.predict(images(2), 1)
    first.result()
    second.result()
    assert recorded.batches == [2]


def test_clients_that_took_turns_in_two_groups_are_merged_into_one_batch(made: tuple[Worker, Recorded]) -> None:
    worker, recorded = made
    recorded.gate.clear()
    first = worker.predict(images(1), 1)
    time.sleep(0.05)
    second = worker.predict(images(2), 1)
    threading.Timer(0.05, recorded.gate.set).start()
    first.result()
    first = worker.predict(images(1), 1)  # the first client's next request
    first.result()
    second.result()
    assert recorded.batches == [1, 2]


def test_after_the_others_have_left_a_client_waits_for_one_window_only(made: tuple[Worker, Recorded]) -> None:
    worker, recorded = made
    recorded.gate.clear()
    several = [worker.predict(images(value), 1) for value in (1, 2, 3)]
    recorded.gate.set()
    for future in several:
        future.result()
    begun = time.perf_counter()
    for _ in range(4):
        worker.predict(images(1), 1).result()
    assert time.perf_counter() - begun < 0.9  # one window is 0.5 s
    assert recorded.batches[-4:] == [1] * 4


def test_the_thread_that_predicts_is_the_one_that_is_warm(made: tuple[Worker, Recorded]) -> None:
    assert made[1].warm == "mixmo-network"


def test_a_failure_while_warming_up_is_raised_at_the_start(backend: Backend) -> None:
    recorded = Recorded(backend)
    recorded.device = torch.device("cuda")  # warm in the thread only
    recorded.warm_up = lambda: recorded.predict(images(255))  # type: ignore[method-assign]
    worker = Worker(recorded, 8, 0.5, lambda *_: None)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="cannot"):
        worker.start()
    worker.close()


def test_one_failing_image_does_not_fail_the_others_of_its_batch(made: tuple[Worker, Recorded]) -> None:
    worker, recorded = made
    recorded.gate.clear()
    blocking = worker.predict(images(1), 1)
    time.sleep(0.05)
    good, bad, other = (worker.predict(images(value), 1) for value in (2, 255, 3))
    recorded.gate.set()
    assert [len(future.result()) for future in (blocking, good, other)] == [1, 1, 1]
    with pytest.raises(RuntimeError, match="cannot"):
        bad.result()
    assert worker.alive


def test_a_cancelled_request_is_not_predicted(made: tuple[Worker, Recorded]) -> None:
    worker, recorded = made
    recorded.gate.clear()
    blocking = worker.predict(images(1), 1)
    time.sleep(0.05)
    assert worker.predict(images(2), 1).cancel()
    recorded.gate.set()
    blocking.result()
    worker.call(lambda: None).result()
    assert recorded.batches == [1]


def test_closing_finishes_the_queue_and_takes_no_more(made: tuple[Worker, Recorded]) -> None:
    worker, recorded = made
    recorded.gate.clear()
    futures = [worker.predict(images(value), 1) for value in (1, 2, 3)]
    threading.Timer(0.1, recorded.gate.set).start()
    worker.close()
    assert all(future.done() for future in futures)
    assert not worker.alive
    with pytest.raises(ClosedError):
        worker.predict(images(1), 1)
