"""Models that run differently in training: with auxiliary heads, or with layers that are computed a second time."""

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


def make_trainable(model: nn.Module, trial: Trial, stems: Sequence[str], head_given: bool) -> None:
    """Reject stems that the backward pass recomputes, and auxiliary heads unless the head was given.

    Parameters of the auxiliary heads are then frozen: without a part in the loss they would stop distributed training.
    """
    layers = leaves(model)
    with _train_mode(model):
        try:
            with torch.enable_grad():
                images = trial.images.clone().requires_grad_()
                output, seen = calls(model, layers, images.clone())
        except Exception:  # a model that does not train on two images trains on more
            return
        _check_computed_once(model, stems, output, images)
        others = _auxiliary(output)
        if not others:
            return
        if not head_given:
            counts = {logits.shape[-1] for logits in (logits_of(output), *others) if logits.dim()}
            heads = [call.name for call in seen if any(class_dim(layers[call.name], call.output, k) for k in counts)]
            names = ", ".join(dict.fromkeys(heads))
            raise UserError(f"the model has several outputs in training, by {names}; name the head to train by head=")
        wanted = [p for p in model.parameters() if p.requires_grad]
        used = torch.autograd.grad(logits_of(output).sum(), wanted, allow_unused=True)
        for parameter, gradient in zip(wanted, used, strict=True):
            parameter.requires_grad_(gradient is not None)


@contextmanager
def _train_mode(model: nn.Module) -> Iterator[None]:
    """Switch to training mode; restore modes and batch statistics at the end."""
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


def _check_computed_once(model: nn.Module, stems: Sequence[str], output: Any, images: Tensor) -> None:
    again: list[str] = []
    handles = [
        model.get_submodule(stem).register_forward_hook(lambda *_, stem=stem: again.append(stem)) for stem in stems
    ]
    try:
        # No gradient, or none separately: then a checkpoint is reentrant, and find_stems saw it.
        with suppress(RuntimeError):
            torch.autograd.grad(logits_of(output).sum(), images, retain_graph=True, allow_unused=True)
    finally:
        for handle in handles:
            handle.remove()
    if again:
        raise recomputed(f"'{again[0]}'")


def _auxiliary(output: Any) -> list[Tensor]:
    """Return what a model outputs beside its logits, without the features that they are computed from."""
    logits = logits_of(output)
    values = output.values() if isinstance(output, dict) else output if isinstance(output, tuple | list) else [output]
    others = [value for value in values if isinstance(value, Tensor) and value is not logits]
    return [value for value in others if not _precedes(value, logits)]


def _precedes(features: Tensor, logits: Tensor) -> bool:
    if not (features.requires_grad and logits.requires_grad):
        return False
    return torch.autograd.grad(logits.sum(), features, retain_graph=True, allow_unused=True)[0] is not None
