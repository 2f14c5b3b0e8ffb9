"""What a finished run keeps: weights, float32 logits and scores of the last and of the best epoch."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from mixmo.engine.runtime import Runtime
from mixmo.engine.scoring import Scored, Scorer
from mixmo.metrics.report import evaluate
from mixmo.runs.directory import Run
from mixmo.storage.weights import save_tensors, to_bfloat16


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
    for which, weights in (("best", last if best is None else best), ("last", last)):
        if which == "best" or best is not None:
            stored = to_bfloat16(weights) if runtime.compact else weights
            scorer.net.load_state_dict(stored)
            same = weights is last and scorer.recipe.precision == "fp32" and not runtime.compact
            tensors = scorer.stored(scored if same else None)
            logits, labels = tensors["logits"].cpu(), tensors["labels"].cpu()  # scored there, as from the files
            known = scored["test"] if scored else None
            report = known.report if known and known.logits is logits else evaluate(logits, labels)
        scores[which] = report.to_dict()
        if scorer.world.writes:
            save_tensors(tensors, run.path / f"logits-{which}.safetensors")
            save_tensors(stored, run.path / f"{which}.safetensors", runtime.shard_mb)
    if scorer.world.writes:
        run.finish(scores)
