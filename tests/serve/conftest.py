"""A small network with all of a calibration, served over real HTTP on a free port."""

import io
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from PIL import Image

import mixmo
from mixmo.models.network import Ensemble
from mixmo.serve.app import create_app
from mixmo.serve.backends import Backend, TorchBackend
from mixmo.serve.server import Server, address, bind
from mixmo.serve.settings import Limits

CLASSES = ("hen", "owl", "<img src=x onerror=alert(1)>", "\x1b[31mred", "cat", "dog_house", "sea")
SAMPLES = Path(mixmo.__file__).parent / "serve" / "samples"
Serve = Callable[..., AbstractContextManager[httpx.Client]]


@pytest.fixture(scope="session")
def net() -> Ensemble:
    """A network whose members differ, with temperature, conformal sets and a threshold."""
    torch.manual_seed(0)
    net = mixmo.create("wrn10_1", classes=len(CLASSES), members=2)
    net.about = mixmo.About((3, 32, 32), (0.5, 0.4, 0.3), (0.2, 0.3, 0.25), classes=CLASSES, dataset="birds")
    pixels = np.stack([np.asarray(Image.open(io.BytesIO(picture(seed, (32, 32))))) for seed in range(100, 300)])
    for _ in range(2):  # logits of mean 0 and standard deviation 2, so that labels differ
        logits = mixmo.predict(net, pixels).logits
        for head, each in zip(net.heads, logits, strict=True):
            head.bias.data -= each.mean(0)
            head.weight.data *= (2 / each.std(0))[:, None]
            head.bias.data *= 2 / each.std(0)
    logits = mixmo.predict(net, pixels).logits
    noisy = torch.distributions.Categorical(logits=3 * logits.mean(0)).sample()
    net.about = net.about.calibrated(mixmo.calibrate(logits, noisy, level=0.8, risk=0.25))
    return net.eval()


@pytest.fixture(scope="session")
def backend(net: Ensemble) -> Backend:
    return TorchBackend([net], "small", net.about.calibration)


@pytest.fixture(scope="session")
def exported(net: Ensemble, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The network as an ONNX file, of another temperature and preparation."""
    path = tmp_path_factory.mktemp("onnx") / "net.onnx"
    about = net.about
    net.about = replace(about, resize=36, calibration=replace(about.calibration, temperature=1.7))
    try:
        mixmo.export(net, path)
    finally:
        net.about = about
    return path


@contextmanager
def serving(backend: Backend, limits: Limits | None = None, **options: object) -> Iterator[httpx.Client]:
    """Serve in a thread; yield a client."""
    listening = bind("127.0.0.1", 0)
    started = threading.Event()
    limits = limits or Limits()
    server = Server(create_app(backend, limits, **options), started.set, limits.max_seconds)  # type: ignore[arg-type]
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        assert started.wait(10)
        with httpx.Client(base_url=address(listening), timeout=20) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join(60)
        listening.close()
        assert not thread.is_alive()


@pytest.fixture(scope="session")
def serve() -> Serve:
    """The function `serving`: a service for a while."""
    return serving


@pytest.fixture(scope="session")
def client(backend: Backend) -> Iterator[httpx.Client]:
    """A client of one service for all tests."""
    with serving(backend, hosts=("127.0.0.1",)) as client:
        yield client


def picture(
    seed: int = 0, size: tuple[int, int] = (40, 50), mode: str = "RGB", kind: str = "PNG", **options: object
) -> bytes:
    """The bytes of a random image file."""
    random = np.random.default_rng(seed)
    coarse = Image.fromarray(random.integers(0, 256, (4, 4, 3), np.uint8)).resize(size)
    file = io.BytesIO()
    coarse.convert(mode).save(file, kind, **options)
    return file.getvalue()


@pytest.fixture(scope="session")
def draw_file() -> Callable[..., bytes]:
    """The function `picture`."""
    return picture
