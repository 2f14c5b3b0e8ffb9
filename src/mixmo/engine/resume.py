"""Open the run to train: a new one, one to continue, or one to continue for another number of epochs."""

from pathlib import Path

from mixmo.engine.schedule import Schedule
from mixmo.recipes.schema import Recipe
from mixmo.runs.checkpoint import Checkpoints
from mixmo.runs.directory import Run, is_run
from mixmo.storage import checksums
from mixmo.storage.files import atomic_write
from mixmo.utils.errors import UserError


def open_run(recipe: Recipe, out: Path, resume: bool, fitted: bool) -> Run:
    """Create a run, or open the one to resume, whose recipe must be the same up to what was `fitted` to a budget."""
    if not (resume and is_run(out)):
        return Run.create(out, recipe)
    run = Run.open(out)
    ours, theirs = recipe.to_dict(), run.recipe.to_dict()
    free = ("epochs", "warmup") if fitted else ("epochs",)
    different = [f"{key} {theirs[key]} -> {ours[key]}" for key in ours if ours[key] != theirs[key] and key not in free]
    if different:
        changes = ", ".join(different)
        raise UserError(f"{out} is a run of another recipe ({changes}); leave these out, or give another --out")
    return run


def change_epochs(run: Run, epochs: int, samples: int) -> None:
    """Set the number of epochs of a run, finished or not, and of all its networks.

    Every epoch that was trained must have had the learning rate and the p that it would have had with the new number.
    A cosine allows it within its warm-up only, a step schedule until the first decay, and p until the last twelfth;
    where both are constant, also a finished run can go on.
    """
    networks = [Run.open(path) for path in run.network_paths() if is_run(path)]
    for network in networks:
        if reason := _obstacle(network, epochs, samples):
            remedy = f"leave it at {run.recipe.epochs}, or train into another --out"
            raise UserError(f"{network.path} cannot be trained to {epochs} epochs: {reason}; {remedy}")
    for changed in dict.fromkeys([*networks, run]):
        _set_epochs(changed, epochs)


def _obstacle(run: Run, epochs: int, samples: int) -> str | None:
    """Return why the number of epochs cannot change, or None if it can."""
    recipe, state, mixer = run.recipe, Checkpoints(run.path / "checkpoints").state(), run.recipe.mixer()
    if state is None:
        return "it has no checkpoint to continue from" if run.is_finished() else None
    before, after = Schedule(recipe, samples), Schedule(recipe.replace(epochs=epochs), samples)
    trained = -(-state.step // before.steps_per_epoch)
    if state.step > after.steps:
        return f"it has trained {trained} already"
    for epoch in range(trained):
        step = min(state.step, (epoch + 1) * before.steps_per_epoch) - 1
        rates, chances = zip(*((s.lr(step), mixer.chance(s.progress(step))) for s in (before, after)), strict=True)
        for what, (was, planned) in {"learning rate": rates, "p": chances}.items():
            if was != planned:
                return f"its {what} in epoch {epoch + 1} was {was:.4g} and would have been {planned:.4g}"
    return None


def _set_epochs(run: Run, epochs: int) -> None:
    """Change the recipe of a run. After each of these writes, the run can be resumed: nothing is lost in between."""
    for checkpoint in Checkpoints(run.path / "checkpoints").all():
        sums = checksums.read_sums(checkpoint)
        lines = [f"{digest}  {name}\n" for name, digest in sums.items() if Path(name).name != "recipe.yaml"]
        with atomic_write(checkpoint / checksums.NAME) as file:
            file.write_text("".join(lines))
    (run.path / checksums.NAME).unlink(missing_ok=True)
    recipe, scores = run.recipe, run.path / "scores.json"
    if scores.is_file():
        scores.rename(run.path / f"scores-epoch{recipe.epochs}.json")
    run.write_recipe(recipe.replace(epochs=epochs))
