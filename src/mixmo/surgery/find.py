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
    follows: bool  # it has only a scale and a shift: the layer before it is part of the head


def find_stems(model: nn.Module, trial: Trial, names: Sequence[str] | None) -> list[Stem]:
    """Return the convolutions or patch embeddings through which, together, the logits depend on the image.

    Most backbones have one. A block of parallel branches has several, and so have transformers of two scales. With the
    outputs of the layers found so far detached, the next is the first whose input still depends on the image; all are
    found when the logits do not.
    """
    layers = _named(model, names, "stem") if names else _layers(model)
    found: list[Stem] = []
    while True:
        images = trial.images.clone().requires_grad_()
        with torch.enable_grad():
            output, seen = calls(model, layers, images.clone(), [stem.name for stem in found])
        if found and not logits_of(output).requires_grad:
            return found
        reading = [call for call in seen if call.input.requires_grad]
        reading = [call for call in reading if call.name not in {stem.name for stem in found}]
        entry = next((call for call in reading if names or _encodes(layers[call.name], call.output)), None)
        if entry is None or len(found) == BRANCHES:
            detached = [call.name for call in seen if call.input.requires_grad and not call.output.requires_grad]
            raise recomputed(f"'{detached[0]}'") if detached else _no_stem(model, found, seen, names)
        if sum(call.name == entry.name for call in seen) > 1:
            raise UserError(f"the model calls '{entry.name}' several times per image; it cannot be the stem")
        found.append(_stem(layers[entry.name], entry, trial))


def find_heads(model: nn.Module, trial: Trial, names: Sequence[str] | None) -> list[Head]:
    """Return the last layers with K outputs that can be doubled, so that the model outputs its logits twice.

    One layer in general; two where a model averages two heads.
    """
    classes = trial.logits.shape[1]
    layers = _named(model, names, "head") if names else leaves(model)
    kinds = PROBABILITIES if names else (*PROBABILITIES, nn.Identity)  # what the user names may be one
    ends: dict[str, nn.Module] = {name: end for name, end in model.named_modules() if isinstance(end, kinds)}
    with torch.no_grad():
        _, seen = calls(model, layers | ends, trial.images.clone())
    _check_end(trial, layers, ends, seen)
    seen = [call for call in seen if call.name in layers]
    dims = {call.name: class_dim(layers[call.name], call.output, classes) for call in seen}
    fitting = [Head(name, dim, _vectors(layers[name])) for name, dim in dims.items() if dim]
    if names:
        lacking = set(names) - {head.name for head in fitting}
        if lacking:
            raise UserError(f"head '{min(lacking)}' is not called, or does not output {classes} classes; give another")
        fitting[0] = fitting[0]._replace(follows=False)  # what the user names first is the head
    tried = [fitting] if names else [fitting[-count:] for count in range(1, min(len(fitting), BRANCHES) + 1)]
    for heads in tried:
        if heads and not heads[0].follows and _doubles(model, trial, heads):
            return heads
    if not fitting:
        last = ", ".join(call.name for call in seen[-NAMED:])
        raise UserError(f"no layer outputs {classes} classes; is the model a classifier? Its last layers: {last}")
    candidates = ", ".join(head.name for head in fitting[-NAMED:])
    raise UserError(
        f"the model changes the logits of its last layer; remove a softmax, or name the head by head= ({candidates} "
        f"output {classes} classes)"
    )


def _check_end(trial: Trial, layers: dict[str, nn.Module], ends: dict[str, nn.Module], seen: Sequence[Call]) -> None:
    """Reject probabilities, for the loss takes logits, and an Identity in place of the classifier.

    After a classifier, as in timm's models, an Identity does no harm.
    """
    logits = [call.output.flatten(1) for call in seen if call.name in layers and not _vectors(layers[call.name])]
    for call in seen:
        if call.name not in ends or not torch.equal(call.output, trial.logits):
            continue
        if isinstance(ends[call.name], PROBABILITIES):
            kind = type(ends[call.name]).__name__
            raise UserError(f"the model ends with a {kind} ('{call.name}'); remove it, the loss takes logits")
        if not any(torch.equal(given, call.input.flatten(1)) for given in logits):
            raise UserError(f"the model ends with an Identity ('{call.name}') and outputs features; name the head=")


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
    own = {name: layer for name, layer in model.named_modules() if name}
    return {k: v for k, v in own.items() if is_parametrized(v) or any(True for _ in v.parameters(False))}


def _named(model: nn.Module, names: Sequence[str], role: str) -> dict[str, nn.Module]:
    known = dict(model.named_modules(remove_duplicate=False))
    for name in names:
        if not name or name not in known:
            raise unknown(f"{role} layer", name, [n for n in known if n])
    return {name: known[name] for name in names}


def _vectors(layer: nn.Module) -> bool:
    """Return whether it is a normalisation or a scale: heads of these alone would share what separates classes."""
    return all(parameter.dim() < 2 for parameter in layer.parameters())


def _encodes(layer: nn.Module, output: Tensor) -> bool:
    """Return whether it is a convolution or a dense layer on patches; one on a flat image has no positions to mix."""
    return isinstance(layer, nn.Conv2d) or output.dim() > 2


def _stem(layer: nn.Module, call: Call, trial: Trial) -> Stem:
    output, (height, width) = call.output, trial.size[1:]
    if len(output) != len(trial.images):
        count = f"{len(output)} images for {len(trial.images)}"
        raise UserError(f"stem '{call.name}' reads {count} (crops?), which cannot be mixed; name another by stem=")
    if output.dim() == 3:
        layout, positions = "NLC", output.shape[1]
    elif output.dim() == 4:
        first = isinstance(layer, nn.Conv2d) or (
            not isinstance(layer, nn.Linear) and output.shape[2] * width == output.shape[3] * height
        )
        layout = "NCHW" if first else "NHWC"
        positions = output.shape[2] * output.shape[3] if first else output.shape[1] * output.shape[2]
    else:
        raise UserError(f"stem '{call.name}' outputs {tuple(output.shape)}, no feature map; name another by stem=")
    stride = max(1, round((height * width / positions) ** 0.5))
    return Stem(call.name, layout, stride, call.input.detach(), direct=torch.equal(call.input, trial.images))


def _no_stem(model: nn.Module, found: Sequence[Stem], seen: Sequence[Call], names: Sequence[str] | None) -> UserError:
    if found:
        what = f"the image reaches the logits past '{', '.join(stem.name for stem in found)}' too"
    elif names:
        what = f"stem '{', '.join(names)}' does not read the image"
    else:
        what = "the model begins with no convolution or patch embedding"
    first = ", ".join(list(dict.fromkeys(call.name for call in seen) or _layers(model))[:NAMED])
    return UserError(f"{what}; name the stem by stem= (its first layers with weights: {first or 'none'})")


def class_dim(layer: nn.Module, output: Tensor, classes: int) -> int:
    """Return the dimension of the classes in a layer's output; 0 if there is none."""
    if isinstance(layer, nn.Linear):
        return -1 if output.shape[-1] == classes else 0
    if output.dim() > 2 and output.shape[1] == classes:
        return 1
    return -1 if output.dim() == 2 and output.shape[-1] == classes else 0
