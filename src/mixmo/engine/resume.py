"""Open the run to train: a new one, one to continue, or one to continue for another number of epochs."""

from pathlib import Path

from mixmo.engine.schedule import Schedule
from mixmo.recipes.schema import Recipe
from mixmo.runs.checkpoint import Checkpoints
from mixmo.runs.directory import Run, is_run
from mixmo.storage import checksums
from mixmo.storage.files import replacing
from mixmo.utils.errors import UserError


def open_run(recipe: Recipe, out: Path, resume: bool, fitted: bool) -> Run:
    """Create a run, or open the one to resume, whose recipe must be the same up to the number of epochs.

    If the epochs were `fitted` to a budget, so was the warm-up.
    """
    if not (resume and is_run(out)):
        return Run.create(out, recipe)
    run = Run.open(out)
    ours, theirs = recipe.to_dict(), run.recipe.to_dict()
    free = ("epochs", "warmup") if fitted else ("epochs",)
    different = [f"{key} {theirs[key]} -> {ours[key]}" for key in ours if ours[key] != theirs[key] and key not in free]
    if different:
        raise UserError(
            f"{out} is a run of another recipe ({', '.join(different)}); leave these fields out to resume with its "
            "own, or give another --out"
        )
    return run


def change_epochs(run: Run, epochs: int, samples: int) -> None:
    """Set the number of epochs of a run, finished or not, and of all its networks.

    Learning rate and p depend on the number of epochs. So it can change only where every epoch that was trained had
    the learning rate and the p that it would have had with the new number; the result is then the same as that of a
    training planned so from the start. A cosine allows it within its warm-up only, a step schedule until the first
    decay, and p until the last twelfth; where both are constant, also a finished run can go on.

    Args:
        run: The run to continue.
        epochs: The new number of epochs in all.
        samples: Number of training images, without those held out.

    Raises:
        UserError: If the schedule does not allow it, or the run has no checkpoint to continue from.
    """
    networks = [Run(path) for path in run.networks() if is_run(path)]
    for network in networks:
        _check_schedule(network, epochs, samples)
    for network in dict.fromkeys([*networks, run]):
        _set_epochs(network, epochs)


def _check_schedule(run: Run, epochs: int, samples: int) -> None:
    recipe, state = run.recipe, Checkpoints(run.path / "checkpoints").state()
    longer = recipe.replace(epochs=epochs)
    before, after, mixer = Schedule(recipe, samples), Schedule(longer, samples), recipe.mixer()
    steps = before.steps if state is None and run.finished else 0 if state is None else state.step
    trained = -(-steps // before.steps_per_epoch)
    if (state is None and run.finished) or steps > after.steps:
        missing = f"it has trained {trained} already" if state else "its folder checkpoints is missing"
        raise UserError(f"{run.path} cannot be trained to {epochs} epochs: {missing}; train into another --out")
    for epoch in range(trained):
        step = min(steps, (epoch + 1) * before.steps_per_epoch) - 1
        for what, was, planned in (
            ("learning rate", before.lr(step), after.lr(step)),
            ("p", mixer.chance(before.progress(step)), mixer.chance(after.progress(step))),
        ):
            if was != planned:
                raise UserError(
                    f"{run.path} cannot be trained to {epochs} epochs instead of {recipe.epochs}: its {what} in epoch "
                    f"{epoch + 1} was {was:.4g}, and would have been {planned:.4g}; train into another --out"
                )


def _set_epochs(run: Run, epochs: int) -> None:
    """Change the recipe of a run. After each of these writes, the run can be resumed: nothing is lost in between."""
    for checkpoint in Checkpoints(run.path / "checkpoints").all():
        sums = checksums.read(checkpoint)
        lines = [f"{digest}  {name}\n" for name, digest in sums.items() if Path(name).name != "recipe.yaml"]
        with replacing(checkpoint / checksums.NAME) as file:
            file.write_text("".join(lines))
    (run.path / checksums.NAME).unlink(missing_ok=True)
    recipe, scores = run.recipe, run.path / "scores.json"
    if scores.is_file():
        scores.rename(run.path / f"scores-epoch{recipe.epochs}.json")
    run.write_recipe(recipe.replace(epochs=epochs))
