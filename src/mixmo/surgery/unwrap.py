"""A model as users have it: taken out of torch.compile, DataParallel and the like, copied, checked."""

import copy
from typing import TypeVar, cast

import torch
from torch import nn
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm
from torch.optim.swa_utils import AveragedModel

from mixmo.models.network import Ensemble
from mixmo.utils.errors import UserError, first_line

M = TypeVar("M", bound=nn.Module)
WRAPPERS = (nn.DataParallel, nn.parallel.DistributedDataParallel, AveragedModel)
QUANTISED = ("torch.ao.nn.quantized", "torch.ao.nn.qat", "torch.ao.nn.intrinsic.q")
OLD_NORMS = (WeightNorm, SpectralNorm)
FLOAT = "FloatFunctional"  # an addition, in models that could be quantised but are not


def unwrap(model: M) -> M:
    """Return the model inside torch.compile, DataParallel, DistributedDataParallel or AveragedModel.

    An ensemble is also taken out of any module that holds it as `module`, as timm's averages and Fabric do.
    """
    while True:
        if isinstance(model, WRAPPERS) or isinstance(getattr(model, "module", None), Ensemble):
            model = cast(M, model.module)
        elif isinstance(model, nn.Module) and "_orig_mod" in model._modules:
            model = cast(M, model._modules["_orig_mod"])
        else:
            return model


def unwrap_ensemble(net: nn.Module) -> Ensemble:
    """Return the network with M members inside."""
    net = unwrap(net)
    if not isinstance(net, Ensemble):
        raise UserError(f"a {type(net).__name__} has no members; give it to mixmo.wrap first")
    return net


def copy_model(model: M) -> M:
    try:
        return copy.deepcopy(model)
    except Exception as error:  # whatever a model holds: locks, files, tensors of a graph
        raise UserError(f"copy.deepcopy cannot copy the model ({first_line(error)}); remove that from it") from error


def check_model(model: object) -> None:
    if not isinstance(model, nn.Module):
        raise UserError(f"the model is a {type(model).__name__}; give an nn.Module, such as timm.create_model(...)")
    if isinstance(model, Ensemble) and model.num_heads > 1:
        raise UserError(f"the model is an ensemble of {model.num_heads} already; mixmo.convert changes its members")
    if getattr(model, "num_classes", None) == 0:  # timm's way to ask for features
        raise UserError("the model has num_classes=0 and outputs features; build it with the number of classes")
    for name, layer in model.named_modules():
        if problem := _problem(layer):
            raise UserError(f"the model's layer '{name}' {problem}")


def _problem(layer: nn.Module) -> str | None:
    if isinstance(layer, torch.jit.ScriptModule):
        return "is of torch.jit; wrap the model that it was made from"
    if type(layer).__module__.startswith(QUANTISED) and type(layer).__name__ != FLOAT:
        return "is quantised; wrap the float model that it was made from"
    if any(isinstance(hook, OLD_NORMS) for hook in layer._forward_pre_hooks.values()):
        return "cannot be copied with a norm of torch.nn.utils; use that of torch.nn.utils.parametrizations"
    return None
