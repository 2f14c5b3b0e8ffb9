"""Replay the steps before a NaN or infinite loss to find its cause."""

import dataclasses
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils._pytree import tree_leaves

from mixmo import data
from mixmo.engine.runtime import Runtime
from mixmo.engine.trainer import Trainer
from mixmo.runs.contents import is_nonfinite_event
from mixmo.runs.directory import Run
from mixmo.storage.plain_json import parse_json
from mixmo.utils.errors import UserError, first_line


class Replayed(NamedTuple):
    """The first step whose loss or gradient is NaN or infinite."""

    step: int
    loss: float
    images: list[int]  # numbers of its training images
    modules: list[str]  # those with NaN or infinite outputs, in the order of the forward pass
    gradients: list[str]  # parameters with a NaN or infinite gradient


def replay(run: Run | str | Path, runtime: Runtime | None = None) -> Replayed | None:
    """Repeat the steps from the last checkpoint of a run to its first NaN or infinite loss; write nothing.

    Args:
        run: A run directory with nonfinite.json.
        runtime: Device and data folder; the step is not compiled.

    Returns:
        The first step whose loss or gradient is NaN or infinite, or None if all are finite this time: the same draws
        give the same numbers on the same device only up to rounding.

    Raises:
        UserError: If the run has no nonfinite.json, or its last checkpoint is later than that step.
    """
    run = run if isinstance(run, Run) else Run.open(run)
    event = _read_event(run.path / "nonfinite.json")
    runtime = dataclasses.replace(runtime or Runtime(), compile=False, on_nan="stop", logger=None)
    device, recipe = runtime.resolve(), run.recipe
    dataset = data.load(recipe.dataset, runtime.data, device, runtime.stream, runtime.workers, recipe.val)
    trainer = Trainer(recipe, dataset, run, runtime, device, rollbacks=event["rollbacks"])
    if event["step"] > trainer.schedule.steps:
        raise UserError(f"{run.path / 'nonfinite.json'}: the run has no step {event['step']}; restore it from a copy")
    if trainer.state.step >= event["step"]:
        late = f"the checkpoint of step {trainer.state.step} is later than step {event['step']}"
        raise UserError(f"{run.path}: {late}; replay it in a copy of the run with an earlier checkpoint")
    bad = dict[str, None]()  # modules of the current step
    for name, module in trainer.net.named_modules():
        module.register_forward_hook(lambda *call, name=name: bad.update({} if _finite(call[-1]) else {name: None}))
    trainer.net.train()
    while trainer.state.step < event["step"]:
        bad.clear()
        step = trainer.state.step
        trainer.step.meter.zero_()
        _take_step(trainer)
        loss = trainer.step.meter[0].item()
        gradients = [name for name, p in trainer.net.named_parameters() if p.grad is not None and not _finite(p.grad)]
        overflows = trainer.step.scaler is not None  # which the scale of the loss is lowered for
        if not _finite(trainer.step.meter) or (gradients and not overflows):
            return Replayed(step + 1, loss, trainer.images_of(step), list(bad), gradients)
    return None


def _take_step(trainer: Trainer) -> None:
    state, schedule = trainer.state, trainer.schedule
    progress = schedule.progress(state.step)
    with closing(trainer.draws(state.step, state.step + 1)) as batches:
        for draws in batches:
            trainer.step(draws, schedule.lr(state.step), trainer.batches.mixer.chance(progress), progress)
    state.step += 1


def _finite(values: Any) -> bool:
    return all(bool(leaf.isfinite().all()) for leaf in tree_leaves(values) if isinstance(leaf, Tensor))


def _read_event(path: Path) -> dict[str, int]:
    """Return the step, and the rollbacks before it, of nonfinite.json."""
    try:
        event = parse_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); only a run whose loss was NaN has it") from error
    except ValueError as error:
        raise UserError(f"{path} cannot be read ({first_line(error)}); restore it from a copy") from error
    if not is_nonfinite_event(event):
        raise UserError(f"{path} does not name a step and the rollbacks before it; restore it from a copy")
    return {name: event[name] for name in ("step", "rollbacks")}
