"""Models that run otherwise in training: with auxiliary heads, or with layers computed a second time."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn

from mixmo.models.calls import calls
from mixmo.surgery.find import class_dim, leaves
from mixmo.surgery.layers import recomputed
from mixmo.surgery.probe import Trial
from mixmo.surgery.wrapped import logits_of
from mixmo.utils.errors import UserError
from mixmo.utils.eval_mode import modes_kept


def check_training(model: nn.Module, trial: Trial, stems: Sequence[str], chosen: bool) -> None:
    """Refuses stems that the backward pass calls, and several answers, unless the head was chosen.

    Then what is not behind it is frozen: parameters without a part in the loss would stop distributed training.
    """
    layers = leaves(model)
    with _training(model):
        try:
            with torch.enable_grad():
                images = trial.images.clone().requires_grad_()
                output, seen = calls(model, layers, images.clone())
        except Exception:  # a model that does not train on two images trains on more
            return
        _check_called_once(model, stems, output, images)
        others = _others(output)
        if not others:
            return
        counts = {answer.shape[-1] for answer in (logits_of(output), *others) if answer.dim()}
        heads = [call.name for call in seen if any(class_dim(layers[call.name], call.output, k) for k in counts)]
        if not chosen:
            raise UserError(
                f"the model gives several answers in training, by {', '.join(dict.fromkeys(heads))}; name the head "
                "that MixMo shall train by head=, or build the model without the others"
            )
        wanted = [p for p in model.parameters() if p.requires_grad]
        used = torch.autograd.grad(logits_of(output).sum(), wanted, allow_unused=True)
        for parameter, gradient in zip(wanted, used, strict=True):
            parameter.requires_grad_(gradient is not None)


@contextmanager
def _training(model: nn.Module) -> Iterator[None]:
    """In training mode; modes and batch statistics are put back after."""
    kept = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with modes_kept(model):
        model.train()
        try:
            yield
        finally:
            with torch.no_grad():
                for name, buffer in model.named_buffers():
                    if name in kept:
                        buffer.copy_(kept[name])


def _check_called_once(model: nn.Module, stems: Sequence[str], output: Any, images: Tensor) -> None:
    again: list[str] = []
    handles = [
        model.get_submodule(stem).register_forward_hook(lambda *_, stem=stem: again.append(stem)) for stem in stems
    ]
    try:
        # No gradient, or none apart: then a checkpoint is reentrant, and find_stems saw it.
        with suppress(RuntimeError):
            torch.autograd.grad(logits_of(output).sum(), images, retain_graph=True, allow_unused=True)
    finally:
        for handle in handles:
            handle.remove()
    if again:
        raise recomputed(f"'{again[0]}'")


def _others(output: Any) -> list[Tensor]:
    """What a model returns beside its logits; not the features that they are made of."""
    logits = logits_of(output)
    values = output.values() if isinstance(output, dict) else output if isinstance(output, tuple | list) else [output]
    others = [value for value in values if isinstance(value, Tensor) and value is not logits]
    return [value for value in others if not _leads(value, logits)]


def _leads(features: Tensor, logits: Tensor) -> bool:
    if not (features.requires_grad and logits.requires_grad):
        return False
    return torch.autograd.grad(logits.sum(), features, retain_graph=True, allow_unused=True)[0] is not None
