"""Find a classifier's stem and head by running it: the layers that read the image, and those that output K logits."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from mixmo.models.calls import Call, calls
from mixmo.surgery.layers import Heads, recomputed
from mixmo.surgery.probe import Trial
from mixmo.surgery.wrapped import logits_of
from mixmo.utils.errors import UserError, unknown

BRANCHES = 8  # most layers that make a stem or a head
NAMED = 6  # candidates in an error message
PROBABILITIES = (nn.Softmax, nn.LogSoftmax, nn.Sigmoid, nn.LogSigmoid)


class Stem(NamedTuple):
    """A layer that reads the image."""

    name: str
    layout: str  # of its output: NCHW, NHWC, NLC
    stride: int
    input: Tensor
    direct: bool  # its input is the image itself


class Head(NamedTuple):
    """A layer that outputs the logits."""

    name: str
    dim: int  # of the classes in its output
    follows: bool  # it only scales and shifts: the layer before it is part of the head


def find_stems(model: nn.Module, trial: Trial, names: Sequence[str] | None) -> list[Stem]:
    """Return the convolutions or patch embeddings through which, together, the logits depend on the image.

    With the outputs of the layers found so far detached, the next is the first whose input still depends on the image;
    all are found when the logits do not. Parallel branches and transformers of two scales have several.
    """
    layers = _named(model, names, "stem") if names else _layers(model)
    found: list[Stem] = []
    while True:
        known = [stem.name for stem in found]
        images = trial.images.clone().requires_grad_()
        with torch.enable_grad():
            output, seen = calls(model, layers, images.clone(), known)
        if found and not logits_of(output).requires_grad:
            return found
        reading = [call for call in seen if call.input.requires_grad and call.name not in known]
        entry = next((call for call in reading if names or _encodes(layers[call.name], call.output)), None)
        if entry is None or len(found) == BRANCHES:
            raise _no_stem(model, trial, known, seen, names)
        found.append(_stem(layers[entry.name], entry, trial))


def find_heads(model: nn.Module, trial: Trial, names: Sequence[str] | None) -> list[Head]:
    """Return the last layers with K outputs that can be doubled, so that the model outputs its logits twice."""
    classes = trial.logits.shape[1]
    every = leaves(model)
    layers = _named(model, names, "head") if names else every
    kinds = PROBABILITIES if names else (*PROBABILITIES, nn.Identity)  # what the user names may be one
    ends: dict[str, nn.Module] = {name: end for name, end in model.named_modules() if isinstance(end, kinds)}
    with torch.no_grad():
        _, seen = calls(model, every | layers | ends, trial.images.clone())
    _check_end(trial, layers, ends, seen)
    known = {call.name: call.output for call in seen if call.name in every or call.name in layers}
    dims = {name: class_dim((every | layers)[name], output, classes) for name, output in known.items()}
    fitting = [Head(name, dim, _vectors(layers[name])) for name, dim in dims.items() if dim and name in layers]
    candidates = [name for name, dim in dims.items() if dim and name not in (names or ()) and not _vectors(every[name])]
    remedy = f"name it by head (--head), such as {', '.join(candidates[-NAMED:])}"
    if names:
        lacking = set(names) - {head.name for head in fitting}
        if lacking:
            problem = f"head '{min(lacking)}' is not called, or does not output {classes} classes"
            raise UserError(f"{problem}; {remedy if candidates else 'leave it out'}")
        fitting[0] = fitting[0]._replace(follows=False)  # what the user names first is the head
    tried = [fitting] if names else [fitting[-count:] for count in range(1, min(len(fitting), BRANCHES) + 1)]
    for heads in tried:
        if heads and not heads[0].follows and _doubles(model, trial, heads):
            return heads
    if not fitting:
        raise UserError(f"no layer outputs the {classes} logits; give a classifier, which ends with a dense layer")
    either = f", or {remedy}" if candidates else ""
    raise UserError(f"the head of the {classes} classes is not found: its logits are changed; remove a softmax{either}")


def _check_end(trial: Trial, layers: dict[str, nn.Module], ends: dict[str, nn.Module], seen: Sequence[Call]) -> None:
    """Reject a softmax at the end, and an Identity in place of the classifier; after it, as in timm, it is harmless."""
    logits = [call.output.flatten(1) for call in seen if call.name in layers and not _vectors(layers[call.name])]
    for call in seen:
        end = ends.get(call.name)
        if end is None or not torch.equal(call.output, trial.logits):
            continue
        if isinstance(end, PROBABILITIES) or not any(torch.equal(given, call.input.flatten(1)) for given in logits):
            what = f"the model ends with {end} ('{call.name}'), not logits"
            raise UserError(f"{what}; remove it, or name the last layer by head (--head)")


def _doubles(model: nn.Module, trial: Trial, heads: Sequence[Head]) -> bool:
    """Return whether the model outputs its logits twice, side by side, when these layers do."""
    layers = {head.name: model.get_submodule(head.name) for head in heads}
    try:
        for head in heads:
            replace(model, head.name, Heads([layers[head.name]] * 2, head.dim, head.follows))
        with torch.no_grad():
            logits = logits_of(model(trial.images.clone()))
        both = logits.reshape(len(trial.logits), 2, -1)
        return bool(torch.allclose(both, trial.logits[:, None].expand_as(both), rtol=1e-3, atol=1e-4))
    except Exception:  # whatever a model raises when shapes do not fit
        return False
    finally:
        for name, layer in layers.items():
            replace(model, name, layer)


def replace(model: nn.Module, name: str, new: nn.Module) -> None:
    """Put a layer in place of another, under every name that it has."""
    old = model.get_submodule(name)
    for alias, module in list(model.named_modules(remove_duplicate=False)):
        if module is old:
            parent, _, attribute = alias.rpartition(".")
            setattr(model.get_submodule(parent), attribute, new)


def _layers(model: nn.Module) -> dict[str, nn.Module]:
    """Return what can be a stem: convolutions and dense layers."""
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, nn.Conv2d | nn.Linear)}


def leaves(model: nn.Module) -> dict[str, nn.Module]:
    """Return what can be a head: layers with weights of their own."""
    named = list(model.named_modules())[1:]
    return {name: layer for name, layer in named if is_parametrized(layer) or list(layer.parameters(recurse=False))}


def _named(model: nn.Module, names: Sequence[str], role: str) -> dict[str, nn.Module]:
    known = dict(list(model.named_modules(remove_duplicate=False))[1:])
    for name in names:
        if name not in known:
            raise unknown(f"{role} layer", name, known)
    return {name: known[name] for name in names}


def _vectors(layer: nn.Module) -> bool:
    """Return whether it only scales and shifts: heads of these alone would share what separates classes."""
    return all(parameter.dim() < 2 for parameter in layer.parameters())


def _encodes(layer: nn.Module, output: Tensor) -> bool:
    """Return whether it is a convolution or a dense layer on patches; one on a flat image has no positions to mix."""
    return isinstance(layer, nn.Conv2d) or output.dim() > 2


def _stem(layer: nn.Module, call: Call, trial: Trial) -> Stem:
    output, (height, width) = call.output, trial.size[1:]
    shape = tuple(output.shape)
    if len(output) != len(trial.images) or len(shape) not in (3, 4):
        problem = f"stem '{call.name}' outputs {shape}, not one feature map per image (crops?)"
        raise UserError(f"{problem}; name another by stem (--stem)")
    alike = not isinstance(layer, nn.Linear) and shape[-2] * width == shape[-1] * height
    layout = "NLC" if len(shape) == 3 else "NCHW" if alike or isinstance(layer, nn.Conv2d) else "NHWC"
    positions = output[0].numel() / shape[layout.index("C")]
    stride = max(1, round((height * width / positions) ** 0.5))
    return Stem(call.name, layout, stride, call.input.detach(), direct=torch.equal(call.input, trial.images))


def _no_stem(
    model: nn.Module, trial: Trial, found: Sequence[str], seen: Sequence[Call], names: Sequence[str] | None
) -> UserError:
    if detached := [call.name for call in seen if call.input.requires_grad and not call.output.requires_grad]:
        return recomputed(f"'{detached[0]}'")
    if found:
        what = f"the image reaches the logits past '{', '.join(found)}' too"
    elif names:
        what = f"stem '{', '.join(names)}' does not read the image"
    else:
        what = "the model begins with no convolution or patch embedding"
    layers = _layers(model)
    with torch.enable_grad():
        _, all_calls = calls(model, layers, trial.images.clone().requires_grad_().clone())
    reading = [call for call in all_calls if call.input.requires_grad and call.name not in found]
    fitting = dict.fromkeys(call.name for call in reading if _encodes(layers[call.name], call.output))
    if not fitting:
        return UserError(f"{what}, and no other layer can be its stem; such a model cannot be wrapped")
    return UserError(f"{what}; name the first layer by stem (--stem), such as {', '.join(list(fitting)[:NAMED])}")


def class_dim(layer: nn.Module, output: Tensor, classes: int) -> int:
    """Return the dimension of the classes in a layer's output; 0 if there is none."""
    dim = 1 if output.dim() > 2 and not isinstance(layer, nn.Linear) else -1
    return dim if output.dim() and output.shape[dim] == classes else 0
