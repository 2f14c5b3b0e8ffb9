"""What a finished run keeps: weights, float32 logits and scores of the last and of the best epoch."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from mixmo.engine.runtime import Runtime
from mixmo.engine.scoring import Scored, Scorer
from mixmo.metrics.report import evaluate
from mixmo.runs.directory import Run
from mixmo.storage.files import halve, save_tensors


def write_results(
    run: Run,
    scorer: Scorer,
    best: dict[str, Tensor] | None,
    scored: Mapping[str, Scored] | None,
    summary: dict[str, Any],
    runtime: Runtime,
) -> None:
    """Predict with the best and the last weights in float32, score the test set, write everything.

    Nothing is computed twice: `best` is None where the last epoch is the best one, and what `scored` holds of the last
    epoch is used again if it was predicted in float32 with the weights as they are stored.
    """
    last, scores = {name: tensor.clone() for name, tensor in scorer.net.state_dict().items()}, dict(summary)
    if scorer.recipe.precision != "fp32" or runtime.compact:
        scored = None
    for which, weights in (("best", last if best is None else best), ("last", last)):
        if which == "best" or best is not None:
            stored = halve(weights) if runtime.compact else weights
            scorer.net.load_state_dict(stored)
            known = scored if weights is last else None
            tensors = scorer.stored(known)
            test = known["test"] if known else None
            # On the CPU, as from the files.
            report = test.report if test and test.logits.is_cpu else evaluate(*_on_cpu(tensors))
        scores[which] = report.to_dict()
        if scorer.world.writes:
            save_tensors(tensors, run.path / f"logits-{which}.safetensors")
            save_tensors(stored, run.path / f"{which}.safetensors", runtime.shard_mb)
    if scorer.world.writes:
        run.finish(scores)


def _on_cpu(tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    return tensors["logits"].cpu(), tensors["labels"].cpu()
