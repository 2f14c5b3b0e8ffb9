"""What a network costs: parameters, multiply-adds of one prediction, sizes of its features."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from mixmo.errors import UserError
from mixmo.hidden import PLACES
from mixmo.models.network import Network, Stages


def parameters(net: nn.Module) -> int:
    """Number of trained scalars."""
    return sum(p.numel() for p in net.parameters() if p.requires_grad)


def multiply_adds(net: Network, size: tuple[int, int, int]) -> int:
    """Multiply-adds of one prediction on an image (C, H, W), counted on the meta device: no arithmetic is done.

    Convolutions and dense layers, two for every element normalised, one for every element of the encodings summed. This
    is the paper's count: 5.9571 G for WRN-28-10 with two members, 5.9565 G for the vanilla network.
    """
    count = 0

    def add(layer: nn.Module, _: Any, out: Tensor) -> None:
        nonlocal count
        if isinstance(layer, nn.BatchNorm2d):
            count += 2 * out.numel()
        elif isinstance(layer, nn.Conv2d | nn.Linear):
            count += out.numel() * layer.weight[0].numel()

    def add_sum(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        nonlocal count
        count += 0 if net.concat else (net.members - 1) * inputs[0].numel()

    twin = copy.deepcopy(net).to("meta").eval()
    twin.core.register_forward_pre_hook(add_sum)
    for layer in twin.modules():
        layer.register_forward_hook(add)
    twin(torch.empty(1, *size, device="meta"))
    return count


def stage_shapes(net: Network, size: tuple[int, int, int]) -> list[torch.Size]:
    """(C, h, w) of the features that enter each stage of the core, for images (C, H, W)."""
    shapes: list[torch.Size] = []
    twin = copy.deepcopy(net).to("meta").eval()
    stages = list(twin.core.stages) if isinstance(twin.core, Stages) else []
    if len(stages) < PLACES:
        raise UserError(
            f"feature mixing needs a core of at least {PLACES} Stages, and this one has {len(stages)}; take another "
            "model, or hidden = none"
        )
    for stage in stages:
        stage.register_forward_pre_hook(lambda _, inputs: shapes.append(inputs[0].shape[1:]))
    twin(torch.empty(1, *size, device="meta"))
    return shapes


def training_bytes(net: Network, size: tuple[int, int, int], batch: int, precision: str = "fp32") -> int:
    """What a training step on images (C, H, W) needs at least.

    Weights, gradients and momentum, and the convolutions' outputs, of which the backward pass needs the most.
    """
    outputs = 0

    def add(_: nn.Module, __: Any, out: Tensor) -> None:
        nonlocal outputs
        outputs += out.numel()

    twin = copy.deepcopy(net).to("meta")
    for layer in twin.modules():
        if isinstance(layer, nn.Conv2d):
            layer.register_forward_hook(add)
    twin(torch.empty(2, *size, device="meta"))
    return 3 * 4 * parameters(net) + batch * outputs // 2 * (2 if precision == "bf16" else 4)
