"""A model as users have it: taken out of what is around it, and refused where it cannot be copied or run."""

import copy
from itertools import chain
from typing import TypeVar, cast

import torch
from torch import nn
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm
from torch.optim.swa_utils import AveragedModel

from mixmo.models.metadata import About
from mixmo.models.network import Ensemble
from mixmo.utils.errors import UserError, first_line

M = TypeVar("M", bound=nn.Module)
AROUND = (nn.DataParallel, nn.parallel.DistributedDataParallel, AveragedModel)
QUANTISED = ("torch.ao.nn.quantized", "torch.ao.nn.qat", "torch.ao.nn.intrinsic.q")
FLOAT = "FloatFunctional"  # an addition, in models that could be quantised but are not


def bare(model: M) -> M:
    """The model in a compiled one, whose layers cannot be watched, in one spread over devices, or in its average.

    Of a network of M members, whatever holds it as its `module`: timm's averages, Fabric's modules.

    >>> model = nn.Linear(2, 2)
    >>> bare(torch.compile(nn.DataParallel(model))) is model
    True
    """
    while True:
        if isinstance(model, AROUND) or isinstance(getattr(model, "module", None), Ensemble):
            model = cast(M, model.module)
        elif isinstance(model, nn.Module) and "_orig_mod" in model._modules:
            model = cast(M, model._modules["_orig_mod"])
        else:
            return model


def ensemble(net: nn.Module) -> Ensemble:
    """The network, taken out of what is around it. Refuses one without members, or with another `about`."""
    net = bare(net)
    if not isinstance(net, Ensemble):
        raise UserError(f"a {type(net).__name__} has no members; give it to mixmo.wrap first")
    if not isinstance(net.about, About | None):
        raise UserError(f"net.about is a {type(net.about).__name__}; set it to a mixmo.About(...)")
    return net


def duplicate(model: M) -> M:
    """A copy."""
    for name, layer in model.named_modules():
        for hook in layer._forward_pre_hooks.values():
            if isinstance(hook, WeightNorm | SpectralNorm):
                kind = "weight_norm" if isinstance(hook, WeightNorm) else "spectral_norm"
                raise UserError(
                    f"'{name}' has a torch.nn.utils.{kind}, and cannot be copied; use that of "
                    "torch.nn.utils.parametrizations"
                )
    try:
        return copy.deepcopy(model)
    except Exception as error:  # of whatever a model holds: locks, files, tensors of a graph
        raise UserError(
            f"the model cannot be copied ({first_line(error)}); take off it what copy.deepcopy does not copy"
        ) from error


def check_model(model: object) -> None:
    """Refuses what is no model, or an ensemble already, or cannot be run or trained at all."""
    if not isinstance(model, nn.Module):
        raise UserError(f"the model is a {type(model).__name__}; give an nn.Module, such as timm.create_model(...)")
    if isinstance(model, Ensemble) and model.answers > 1:
        raise UserError(f"the model is an ensemble of {model.answers} already; mixmo.convert gives it other members")
    if getattr(model, "num_classes", None) == 0:  # timm's way to ask for features
        raise UserError("the model has num_classes=0 and answers with features; build it with the number of classes")
    if any(nn.parameter.is_lazy(tensor) for tensor in chain(model.parameters(), model.buffers())):
        raise UserError("the model has lazy layers that do not know their shape yet; run it on an image once")
    if any(tensor.is_meta for tensor in chain(model.parameters(), model.buffers())):
        raise UserError("the model is on the meta device, where it cannot be run; build it on the CPU")
    for name, layer in model.named_modules():
        what = f"the model's layer '{name}'" if name else "the model"
        if isinstance(layer, torch.jit.ScriptModule):
            raise UserError(f"{what} is one of torch.jit, which cannot be changed; give the model that it was made of")
        if type(layer).__module__.startswith(QUANTISED) and type(layer).__name__ != FLOAT:
            raise UserError(
                f"{what} is quantised, and MixMo trains in floating point; wrap the model before quantisation, and let "
                "mixmo.export(..., precision='int8') quantise"
            )
