"""Cost of a network: parameters, multiply-adds per prediction, memory of a training step."""

import copy

import torch
from torch import nn

from mixmo.models.calls import Call, calls
from mixmo.models.network import Network


def parameters(net: nn.Module) -> int:
    """Number of trainable parameters."""
    return sum(p.numel() for p in net.parameters() if p.requires_grad)


def multiply_adds(net: Network, size: tuple[int, int, int]) -> int:
    """Multiply-adds of one prediction on an image (C, H, W).

    Convolutions and dense layers, two for every element normalised, one for every element of the encodings summed. This
    is the paper's count: 5.9571 G for WRN-28-10 with two members, 5.9565 G for the vanilla network.
    """
    count = 0
    for layer, call in layer_calls(net, size):
        if isinstance(layer, nn.BatchNorm2d):
            count += 2 * call.output.numel()
        elif isinstance(layer, nn.Conv2d | nn.Linear):
            count += call.output.numel() * layer.weight[0].numel()
        if call.name == "core" and not net.concat:
            count += (net.members - 1) * call.input.numel()
    return count


def training_bytes(net: Network, size: tuple[int, int, int], batch: int, precision: str) -> int:
    """Lower bound of the memory of a training step on images (C, H, W), in bytes.

    Weights, gradients and momentum, and the outputs of the convolutions, which the backward pass needs.
    """
    outputs = sum(call.output.numel() for layer, call in layer_calls(net, size) if isinstance(layer, nn.Conv2d))
    return 3 * 4 * parameters(net) + batch * outputs * (2 if precision == "bf16" else 4)


def layer_calls(net: Network, size: tuple[int, int, int]) -> list[tuple[nn.Module, Call]]:
    """Every layer and its call for one image, on the meta device: nothing is computed."""
    twin = copy.deepcopy(net).to("meta").eval()
    layers = dict(twin.named_modules())
    _, seen = calls(twin, layers, torch.empty(1, *size, device="meta"))
    return [(layers[call.name], call) for call in seen]
