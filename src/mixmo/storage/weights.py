"""Weights from a file into a network: never those of another architecture."""

from pathlib import Path

import torch
from torch import Tensor, nn

from mixmo.storage.files import load_tensors
from mixmo.utils.errors import UserError

NAMED = 3  # differences that the message names
FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)  # that a network may be stored in


def shapes(net: nn.Module) -> dict[str, torch.Size]:
    """Of everything in the state_dict."""
    return {name: tensor.shape for name, tensor in net.state_dict().items()}


def fill(net: nn.Module, path: Path, assign: bool = False) -> None:
    """Load the weights in `path`, a safetensors file, into a network of the same architecture.

    With `assign` they take the place of the network's, in the precision that they were stored in.
    """
    tensors = load_tensors(path)
    different = differences(shapes(net), tensors) or other_types(net, tensors)
    if different:
        more = f" and {len(different) - NAMED} more" if len(different) > NAMED else ""
        raise UserError(
            f"{path} holds the weights of another architecture: {'; '.join(different[:NAMED])}{more}; "
            "build the network that they were trained in"
        )
    put(net, tensors, assign)


def put(net: nn.Module, tensors: dict[str, Tensor], assign: bool = False) -> None:
    """All the weights into a network; as those of its own version, for which some backbones (MNASNet) ask."""
    state = net.state_dict()
    state.update(tensors)
    net.load_state_dict(state, assign=assign)


def differences(wanted: dict[str, torch.Size], given: dict[str, Tensor]) -> list[str]:
    """One phrase for each tensor that is missing, of another shape, or unknown.

    >>> differences({"a": torch.Size([2]), "b": torch.Size([3])}, {"a": torch.zeros(4), "c": torch.zeros(1)})
    ['a is (4,) there and (2,) in the network', 'b is missing there', 'c is unknown to the network']
    """
    found = []
    for name, shape in wanted.items():
        if name not in given:
            found.append(f"{name} is missing there")
        elif given[name].shape != shape:
            found.append(f"{name} is {tuple(given[name].shape)} there and {tuple(shape)} in the network")
    return found + [f"{name} is unknown to the network" for name in given if name not in wanted]


def other_types(net: nn.Module, given: dict[str, Tensor]) -> list[str]:
    """One phrase for each tensor of a type that cannot take the place of the network's."""
    wanted = {name: FLOATS if own.is_floating_point() else (own.dtype,) for name, own in net.state_dict().items()}
    return [f"{name} is {given[name].dtype} there" for name, types in wanted.items() if given[name].dtype not in types]
