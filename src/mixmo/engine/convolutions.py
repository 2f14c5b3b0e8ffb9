"""The kernels of a network's 3x3 convolutions in training: chosen before the first step, set in place."""

import importlib.util
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from mixmo.engine.distributed import World
from mixmo.kernels.choice import Choice, choose
from mixmo.kernels.layer import Kernels, set_kernels, shape_of
from mixmo.kernels.ops import CUDNN
from mixmo.kernels.remembered import Key, environment, name_of, recall, remember
from mixmo.kernels.shapes import Shape
from mixmo.models import Ensemble
from mixmo.models.cost import layer_calls
from mixmo.utils.device import HALF
from mixmo.utils.progress import say, track

DIRECTIONS = ("forward", "input", "weight")


@dataclass(frozen=True)
class Convolutions:
    """One direction of the layers of one shape, and what computes it."""

    shape: Shape
    direction: str
    layers: int
    choice: Choice


def choose_kernels(
    net: Ensemble, size: tuple[int, int, int], batch: int, precision: str, device: torch.device, world: World
) -> list[Convolutions]:
    """Compute each 3x3 convolution of a training batch by the faster of cuDNN and the Triton kernels.

    Where the kernels cannot run (no Triton, no GPU from Ampere on, no half precision), nothing changes.

    Args:
        net: The network, on the device; its layers are changed in place and keep their names.
        size: Of an image (C, H, W), as the network sees it.
        batch: Images that the network sees at once.
        precision: Of the recipe.
        device: Of the network.
        world: The processes; the first one measures.

    Returns:
        What was chosen for each shape and direction.
    """
    if precision not in HALF or not available(device):
        return []
    shapes, dtype = layer_shapes(net, size, batch), HALF[precision]
    keys: list[Key] = [(shape, each, dtype) for shape in dict.fromkeys(shapes.values()) for each in DIRECTIONS]
    chosen = world.broadcast(choices(keys, device) if world.writes else {})
    if not chosen:
        return []
    for name, shape in shapes.items():
        kernels = Kernels(*(chosen[shape, direction, dtype].kernel for direction in DIRECTIONS))
        layer = net.get_submodule(name)
        assert isinstance(layer, nn.Conv2d)
        if set(kernels) != {CUDNN}:
            set_kernels(layer, shape, dtype, kernels)
    layers = Counter(shapes.values())
    found = [Convolutions(shape, each, layers[shape], chosen[shape, each, dtype]) for shape, each, _ in keys]
    say(summary(found))
    return found


def available(device: torch.device) -> bool:
    """Whether the Triton kernels can run on this device."""
    if device.type != "cuda" or not torch.version.cuda or torch.cuda.get_device_capability(device) < (8, 0):
        return False
    return importlib.util.find_spec("triton") is not None


def layer_shapes(net: Ensemble, size: tuple[int, int, int], batch: int) -> dict[str, Shape]:
    """Return the shape of each convolution that the kernels can compute, by the name of its layer."""
    shapes: dict[str, Shape] = {}
    for layer, call in layer_calls(net, size):
        if call.input.dim() == 4 and (shape := shape_of(layer, (batch, *call.input.shape[1:]))):
            shapes.setdefault(call.name, shape)
    return shapes


def choices(keys: list[Key], device: torch.device) -> dict[Key, Choice]:
    """Recall the choices, and measure those that are missing; return none if that fails."""
    try:
        where = environment(device)
        known = recall(where)
        missing = [key for key in keys if name_of(key) not in known]
        with cudnn_benchmark():
            measured = {name_of(key): choose(*key, device) for key in track(missing, "choosing convolution kernels")}
        if measured:
            remember(where, measured)
    except Exception:  # whatever a compiler or a driver raises: cuDNN can do all of it
        return {}
    return {key: (known | measured)[name_of(key)] for key in keys}


@contextmanager
def cudnn_benchmark() -> Iterator[None]:
    """Let cuDNN search for its fastest algorithms, as the compiled step does."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def summary(found: list[Convolutions]) -> str:
    """Return the line that shows the choices."""
    ours = [each for each in found if each.choice.kernel != CUDNN]
    count, of = (sum(each.layers for each in some) for some in (ours, found))
    saved = sum(each.layers * each.choice.gain_ms for each in ours)
    what = f"Triton for {count} of {of} convolutions (forward, input, weight)"
    return f"kernels  {what}, {saved:.2f} ms per step less" if ours else f"kernels  cuDNN for all {of} convolutions"
