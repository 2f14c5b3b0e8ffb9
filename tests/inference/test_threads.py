"""Several threads predict with one network, also while another one trains it, as one thread alone would."""

import copy
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn

import mixmo

THREADS, TIMES = 8, 12
CLASSES, SIDE = 5, 8


@pytest.fixture(autouse=True)
def frequent_switches() -> Iterator[None]:
    """Let threads take turns as often as possible."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


def created() -> mixmo.Ensemble:
    torch.manual_seed(0)
    return mixmo.create("wrn10_1", classes=CLASSES, members=2)


def wrapped() -> mixmo.Ensemble:
    torch.manual_seed(0)
    own = nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.Dropout(0.5),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, CLASSES),
    )
    return mixmo.wrap(own, members=2, size=(3, SIDE, SIDE))


def trained(net: mixmo.Ensemble) -> mixmo.Ensemble:
    """Return a network in training mode, whose eval mode differs, with one layer in eval mode."""
    for layer in net.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.running_mean.normal_(std=0.2)
    net.train()
    next(layer for layer in net.modules() if isinstance(layer, nn.BatchNorm2d)).eval()
    return net


def images(samples: int, seed: int = 0) -> Tensor:
    return torch.randn(samples, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(seed))


def in_threads(call: Callable[[int], Tensor]) -> list[Tensor]:
    """Return what `call` gives for each of many numbers; the threads begin together."""
    begin = threading.Barrier(THREADS)

    def work(thread: int) -> list[Tensor]:
        begin.wait()
        return [call(thread + THREADS * time) for time in range(TIMES)]

    with ThreadPoolExecutor(THREADS) as pool:
        found = list(pool.map(work, range(THREADS)))
    return [found[number % THREADS][number // THREADS] for number in range(THREADS * TIMES)]


@pytest.mark.parametrize("images_per_pass", [1, 2])
@pytest.mark.parametrize("make", [created, wrapped])
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_threads_predict_as_one_does_and_leave_the_network_as_it_was(
    make: Callable[[], mixmo.Ensemble], images_per_pass: int, mode: str
) -> None:
    net = trained(make())
    net.train() if mode == "train" else net.eval()
    batches = [images(4 + number % 7, seed=number) for number in range(THREADS * TIMES)]
    alone = copy.deepcopy(net).eval()
    expected = [mixmo.predict(alone, batch, images_per_pass=images_per_pass).logits for batch in batches]
    modes = {name: module.training for name, module in net.named_modules()}
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    found = in_threads(lambda number: mixmo.predict(net, batches[number], images_per_pass=images_per_pass).logits)
    assert sum(not torch.equal(one, other) for one, other in zip(found, expected, strict=True)) == 0
    assert {name: module.training for name, module in net.named_modules()} == modes
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())


@contextmanager
def predicting(net: mixmo.Ensemble) -> Iterator[list[int]]:
    """Predict in another thread until the end of the block; yield the number of images predicted so far."""
    ended, count = threading.Event(), [0]

    def work() -> None:
        while not ended.is_set():
            logits = [mixmo.predict(net, images(4), images_per_pass=each).logits for each in (1, 2)]
            count[0] += sum(part.shape[1] for part in logits)

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(work)
        try:
            yield count
        finally:
            ended.set()
            done.result()


@pytest.mark.parametrize("make", [created, wrapped])
def test_training_is_the_same_to_the_last_bit_while_another_thread_predicts(
    make: Callable[[], mixmo.Ensemble],
) -> None:
    def train(net: mixmo.Ensemble) -> dict[str, Tensor]:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        mixer = mixmo.Mixer("cut", members=2, stride=net.stride)
        for step in range(20):
            mix = mixer(images(8, seed=step), torch.arange(8) % CLASSES, generator=torch.Generator().manual_seed(step))
            optimizer.zero_grad()
            mixmo.loss(net(mix), mix).backward()
            optimizer.step()
        return net.state_dict()

    nets = [trained(make()) for _ in range(2)]
    for layer in [layer for net in nets for layer in net.modules()]:
        if isinstance(layer, nn.Dropout):  # its random numbers are those of the process
            layer.p = 0.0
    alone = train(nets[0])
    with predicting(nets[1]) as count:
        together = train(nets[1])
    assert count[0] > 0
    assert all(torch.equal(tensor, alone[name]) for name, tensor in together.items())


def test_a_network_in_training_mode_that_cannot_be_copied_raises_until_it_is_in_eval_mode() -> None:
    net = created()
    net.core.lock = threading.Lock()
    with pytest.raises(mixmo.UserError, match=r"call net\.eval\(\) first"):
        mixmo.predict(net, images(2))
    assert mixmo.predict(net.eval(), images(2)).logits.shape == (2, 2, CLASSES)
