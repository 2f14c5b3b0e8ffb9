"""Cost of a network: parameters, multiply-adds per prediction, memory of a training step."""

import copy

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.flop_counter import FlopCounterMode

from mixmo.kernels.layer import shape_of
from mixmo.kernels.shapes import Shape
from mixmo.models.calls import Call, calls
from mixmo.models.network import Ensemble, Network

NORMS = (_BatchNorm, nn.LayerNorm, nn.GroupNorm)


def parameters(net: nn.Module) -> int:
    """Number of trainable parameters."""
    return sum(p.numel() for p in net.parameters() if p.requires_grad)


def multiply_adds(net: Ensemble, size: tuple[int, int, int]) -> int:
    """Multiply-adds of one prediction on an image (C, H, W).

    Convolutions and matrix products (dense layers, attention), two for every element normalised and, in a `Network`,
    one for every element of the encodings summed. This is the paper's count: 5.9571 G for WRN-28-10 with two members,
    5.9565 G for the vanilla network.
    """
    seen, count = _one_pass(net, size)
    count += sum(2 * call.output.numel() for layer, call in seen if isinstance(layer, NORMS))
    if isinstance(net, Network) and not net.concat:
        count += (net.members - 1) * sum(call.input.numel() for _, call in seen if call.name == "core")
    return count


def training_bytes(net: Ensemble, size: tuple[int, int, int], batch: int, precision: str) -> int:
    """Lower bound of the memory of a training step on images (C, H, W), in bytes.

    Weights, gradients and momentum, and what the backward pass needs: the outputs of the convolutions and the inputs of
    the dense layers on tokens.
    """
    kept = {}
    for layer, call in layer_calls(net, size):
        if isinstance(layer, nn.Conv2d):
            kept[id(call.output)] = call.output.numel()
        elif isinstance(layer, nn.Linear) and call.input.dim() > 2:
            kept[id(call.input)] = call.input.numel()  # once for layers that share it
    return 3 * 4 * parameters(net) + batch * sum(kept.values()) * (4 if precision == "fp32" else 2)


def layer_calls(net: Ensemble, size: tuple[int, int, int]) -> list[tuple[nn.Module, Call]]:
    """Every layer and its call for one image."""
    return _one_pass(net, size)[0]


def layer_shapes(net: Ensemble, size: tuple[int, int, int], batch: int) -> dict[str, Shape]:
    """Return the shape of each convolution that the kernels can compute, by the name of its layer."""
    shapes: dict[str, Shape] = {}
    for layer, call in layer_calls(net, size):
        if call.input.dim() == 4 and (shape := shape_of(layer, (batch, *call.input.shape[1:]))):
            shapes.setdefault(call.name, shape)
    return shapes


def _one_pass(net: Ensemble, size: tuple[int, int, int]) -> tuple[list[tuple[nn.Module, Call]], int]:
    """Every layer and its call for one image, and the multiply-adds of convolutions and matrix products."""
    try:
        return _pass_on(torch.device("meta"), net, size)  # nothing is computed
    except Exception:  # whatever a backbone raises that holds tensors of its own, which do not move
        return _pass_on(torch.device("cpu"), net, size)


def _pass_on(
    device: torch.device, net: Ensemble, size: tuple[int, int, int]
) -> tuple[list[tuple[nn.Module, Call]], int]:
    twin = copy.deepcopy(net).to(device).eval().requires_grad_(False)
    layers, counter = dict(twin.named_modules()), FlopCounterMode(display=False)
    with counter, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):  # the fused attention of CPUs is not counted
        _, seen = calls(twin, layers, torch.zeros(1, *size, device=device))
    return [(layers[call.name], call) for call in seen], counter.get_total_flops() // 2
