"""Evaluate a network that other threads may be using or training, without changing its mode."""

import copy
from typing import TypeVar

from torch import Tensor, nn

from mixmo.models.network import Ensemble
from mixmo.surgery.layers import Copies
from mixmo.surgery.wrapped import Wrapped
from mixmo.utils.errors import UserError, first_line

E = TypeVar("E", bound=Ensemble)


def in_eval_mode(net: E, images_per_pass: int = 1) -> E:
    """Return the network itself if it is in eval mode, else a copy in eval mode that shares its weights and buffers.

    A wrapped network that reads several images per pass is copied too: its layers hold them during a call.
    """
    held = isinstance(net, Wrapped) and images_per_pass > 1
    return _view(net) if held or any(module.training for module in net.modules()) else net


def _view(net: E) -> E:
    shared = {id(tensor): tensor for module in net.modules() for tensor in _tensors(module)}
    try:
        view = copy.deepcopy(net, shared).eval()
    except Exception as error:  # whatever a model holds: locks, files, tensors of a graph
        problem = f"a network in training mode predicts by a copy, but it cannot be copied ({first_line(error)})"
        raise UserError(f"{problem}; call net.eval() first") from error
    for layer in view.modules():
        if isinstance(layer, Copies):  # another thread may be in the middle of a call
            layer.reset()
    return view


def _tensors(module: nn.Module) -> list[Tensor]:
    held = [*module._parameters.values(), *module._buffers.values(), *vars(module).values()]
    return [value for value in held if isinstance(value, Tensor)]
