"""Models that run differently in training: with auxiliary heads, or with layers that are computed a second time."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn

from mixmo.models.calls import Call, calls
from mixmo.surgery.find import class_dim, leaves
from mixmo.surgery.layers import recomputed
from mixmo.surgery.probe import Trial
from mixmo.surgery.wrapped import logits_of
from mixmo.utils.errors import UserError, first_line
from mixmo.utils.eval_mode import modes_kept

MORE = 32  # times the images of a trial, where a model fails on these
LARGER = (2, 4)  # times the size of its images, likewise


def make_trainable(model: nn.Module, trial: Trial, stems: Sequence[str], head_given: bool) -> None:
    """Reject models that fail in training, stems that the backward pass recomputes, and auxiliary heads unless named.

    Parameters of the auxiliary heads are then frozen: without a part in the loss they would stop distributed training.
    """
    layers = leaves(model)
    with _train_mode(model):
        trained = _training_pass(model, layers, trial)
        if trained is None:
            return
        images, output, seen = trained
        if again := _computed_again(model, stems, output, images):
            raise recomputed(f"'{again[0]}'")
        others = _auxiliary(output)
        if not others:
            return
        counts = {logits.shape[-1] for logits in (logits_of(output), *others) if logits.dim()}
        heads = [call.name for call in seen if any(class_dim(layers[call.name], call.output, k) for k in counts)]
        names = ", ".join(dict.fromkeys(heads))
        if not head_given:
            problem = f"the model has several outputs in training, by {names}"
            raise UserError(f"{problem}; name the one to train by head (--head)")
        wanted = [p for p in model.parameters() if p.requires_grad]
        used = torch.autograd.grad(logits_of(output).sum(), wanted, allow_unused=True)
        for parameter, gradient in zip(wanted, used, strict=True):
            parameter.requires_grad_(gradient is not None)


def _training_pass(
    model: nn.Module, layers: Mapping[str, nn.Module], trial: Trial
) -> tuple[Tensor, Any, list[Call]] | None:
    """Return images, the model's output for them in training mode, and its calls; None, with a warning, if it fails.

    A batch of more images is tried too, which a model can divide, say into ghost batches.

    Raises:
        UserError: If it trains on larger images only, as with auxiliary heads.
    """

    problems: list[str] = []

    def on(images: Tensor) -> tuple[Tensor, Any, list[Call]] | None:
        try:
            with torch.enable_grad():
                images = images.clone().requires_grad_()
                return images, *calls(model, layers, images.clone())
        except Exception as error:  # whatever a model raises
            problems.append(first_line(error))
            return None

    if found := on(trial.images) or on(trial.images.repeat(MORE, 1, 1, 1)):
        return found
    if any(on(torch.nn.functional.interpolate(trial.images, scale_factor=factor)) for factor in LARGER):
        problem = f"the model runs on images of {trial.size} in eval mode, not in training ({problems[0]})"
        raise UserError(f"{problem}; give larger images (size, or --size)")
    unknown = "whether its backward pass recomputes its stem, or it has auxiliary heads, is not known"
    warnings.warn(f"the model failed on random images in training mode ({problems[0]}); {unknown}", stacklevel=4)
    return None


@contextmanager
def _train_mode(model: nn.Module) -> Iterator[None]:
    """Switch to training mode; restore modes and batch statistics at the end."""
    kept = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with modes_kept(model):
        model.train()
        for layer in model.modules():
            if isinstance(layer, nn.SyncBatchNorm):  # would need the other processes, and a GPU
                layer.eval()
        try:
            yield
        finally:
            with torch.no_grad():
                for name, buffer in model.named_buffers():
                    if name in kept:
                        buffer.copy_(kept[name])


def _computed_again(model: nn.Module, stems: Sequence[str], output: Any, images: Tensor) -> list[str]:
    """Return the stems that the backward pass calls."""
    again: list[str] = []
    # No gradient, or none separately: then a checkpoint is reentrant, and find_stems saw it.
    with ExitStack() as hooks, suppress(RuntimeError):
        for stem in stems:
            hook = model.get_submodule(stem).register_forward_hook(lambda *_, stem=stem: again.append(stem))
            hooks.enter_context(hook)
        torch.autograd.grad(logits_of(output).sum(), images, retain_graph=True, allow_unused=True)
    return again


def _auxiliary(output: Any) -> list[Tensor]:
    """Return what a model outputs beside its logits, without the features that they are computed from."""
    logits = logits_of(output)

    def precedes(value: Tensor) -> bool:
        known = value.requires_grad and logits.requires_grad
        return known and torch.autograd.grad(logits.sum(), value, retain_graph=True, allow_unused=True)[0] is not None

    values = output.values() if isinstance(output, dict) else output if isinstance(output, tuple | list) else ()
    return [value for value in values if isinstance(value, Tensor) and value is not logits and not precedes(value)]
