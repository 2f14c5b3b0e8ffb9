"""The kernels of a network in training: chosen before the first step, set in place."""

from collections import Counter
from dataclasses import dataclass

import torch
from torch import nn

from mixmo.engine.distributed import World
from mixmo.engine.optimizer import end_names
from mixmo.kernels.choice import Choice
from mixmo.kernels.devices import available
from mixmo.kernels.layer import Kernels, set_fp8, set_kernels
from mixmo.kernels.norm_relu import set_norm_relu, sums_are_right
from mixmo.kernels.ops import CUDNN
from mixmo.kernels.quantisation import E4M3
from mixmo.kernels.remembered import Key, choices, name_of
from mixmo.kernels.shapes import Shape
from mixmo.kernels.stem import stem_is_right
from mixmo.models import Ensemble
from mixmo.models.cost import layer_calls, layer_shapes
from mixmo.surgery.layers import Encoders
from mixmo.utils.device import HALF
from mixmo.utils.errors import UserError
from mixmo.utils.progress import say

DIRECTIONS = ("forward", "input", "weight")


@dataclass(frozen=True)
class Convolutions:
    """One direction of the layers of one shape, and what computes it."""

    shape: Shape
    direction: str
    layers: int
    choice: Choice
    fp8: bool = False


def choose_kernels(
    net: Ensemble,
    size: tuple[int, int, int],
    batch: int,
    precision: str,
    device: torch.device,
    world: World,
    kernels: str = "auto",
) -> list[Convolutions]:
    """Compute each 3x3 convolution of a training batch by the faster of cuDNN and the Triton kernels.

    With "auto", Triton kernels also compute the sums of batch normalisations that a ReLU follows (`norm_relu`), and the
    overlapping stems of a wrapped backbone. Where the kernels cannot run (no Triton, no GPU from Ampere on, no half
    precision), nothing changes. In fp8, all convolutions but those of the encoders become fp8 ones, whose forward pass
    and input gradient take the fastest tile; where the kernels cannot run, torch computes them from the dequantised
    operands, which is slow.

    Args:
        net: The network, on the device; its layers are changed in place and keep their names.
        size: Of an image (C, H, W), as the network sees it.
        batch: Images that the network sees at once.
        precision: Of the recipe.
        device: Of the network.
        world: The processes; the first one measures.
        kernels: "auto", or "cudnn" to choose only those in fp8.

    Returns:
        What was chosen for each shape and direction.
    """
    auto = kernels == "auto"
    _set_stems(net, auto and precision in HALF, device)
    if precision not in HALF or not (auto or precision == "fp8"):
        return []
    layers = layer_shapes(net, size, batch)
    in_fp8 = fp8_layers(net, layers) if precision == "fp8" else set()
    keys = {
        (name, direction): (shape, direction, E4M3 if name in in_fp8 and direction != "weight" else HALF[precision])
        for name, shape in layers.items()
        for direction in DIRECTIONS
    }
    counts = Counter(key for key in keys.values() if auto or key[2] == E4M3)
    chosen: dict[Key, Choice] = {}
    if available(device):
        chosen = world.broadcast(choices(list(counts), device) if world.writes else {})
        if failed := [key for key in counts if key[2] == E4M3 and (key not in chosen or chosen[key].tile is None)]:
            raise UserError(f"precision = fp8: no Triton kernel computes {name_of(failed[0])} here; take bf16")
    for name, shape in layers.items():
        named = (chosen.get(keys[name, direction]) for direction in DIRECTIONS)
        taken = Kernels(*(CUDNN if one is None else one.kernel for one in named))
        layer = net.get_submodule(name)
        assert isinstance(layer, nn.Conv2d)
        if name in in_fp8:
            set_fp8(layer, shape, taken)
        elif set(taken) != {CUDNN}:
            set_kernels(layer, shape, HALF[precision], taken)
    if auto and available(device) and sums_are_right(device):
        for _, call in layer_calls(net, size):
            set_norm_relu(net.get_submodule(call.name), (batch, *call.input.shape[1:]))
    found = [Convolutions(*key[:2], counts[key], choice, key[2] == E4M3) for key, choice in chosen.items()]
    if found:
        say(summary(found))
    return found


def _set_stems(net: Ensemble, wanted: bool, device: torch.device) -> None:
    """Let the stems of a wrapped backbone take their kernel if it is wanted and works here."""
    stems = [layer for layer in net.modules() if isinstance(layer, Encoders)]
    by_kernel = wanted and bool(stems) and available(device) and stem_is_right(device)
    for layer in stems:
        layer.by_kernel = by_kernel


def fp8_layers(net: Ensemble, shapes: dict[str, Shape]) -> set[str]:
    """Return the names of the layers to compute in fp8: not those of the encoders, which read pixels."""
    stems, _ = end_names(net)
    return {name for name, shape in shapes.items() if shape.supported_in_fp8 and not name.startswith(stems)}


def summary(found: list[Convolutions]) -> str:
    """Return the line that shows the choices."""
    ours = [each for each in found if each.choice.kernel != CUDNN]
    count, of = (sum(each.layers for each in some) for some in (ours, found))
    saved = sum(each.layers * each.choice.gain_ms for each in ours)
    fp8 = sum(each.layers for each in ours if each.fp8)
    what = f"Triton for {count} of {of} convolutions (forward, input, weight){f', {fp8} in fp8' if fp8 else ''}"
    return f"kernels  {what}, {saved:.2f} ms per step less" if ours else f"kernels  cuDNN for all {of} convolutions"
