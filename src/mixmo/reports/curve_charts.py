"""Curves over the epochs, of one run or of several over each other."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from mixmo.reports.run_data import RunData
from mixmo.reports.vega import Chart, axis, keys, lines, stacked

Points = tuple[list[float], list[float]]  # epochs, values
LONG = 40  # epochs from which the end of a training has a chart of its own
EPOCH = axis("epoch", "x", axis={"tickMinStep": 1, "grid": False}, nice=False)


class Curve(NamedTuple):
    """A kind of curve: where its numbers are, and how to show them."""

    title: str
    column: str  # of metrics.jsonl
    unit: str
    about: str
    factor: float = 1.0
    step: bool = False


LOSS = Curve("Training loss", "train.loss", "loss", "Weighted cross-entropy of the mixed inputs, mean over an epoch.")
SUMMED = "It is the sum over the heads: compare it only between runs with the same number of members."
TOP1 = Curve("Test accuracy", "test.ensemble.top1", "Top1 %", "Share of test images that are predicted correctly.", 100)
NLL = Curve("Test NLL", "test.ensemble.nll", "NLL (nats)", "Negative log-likelihood, without temperature scaling.")
ECE = Curve("Calibration error", "test.ensemble.ece", "ECE", "Expected calibration error, without temperature scaling.")
DIVERSITY = Curve(
    "Diversity of the members",
    "test.diversity.ratio_error",
    "ratio-error",
    "Ratio-error (the paper's d_re): test images that exactly one of two members gets wrong, over those that both do.",
)
RATE = Curve("Learning rate", "lr", "learning rate", "Learning rate of the last step of each scored epoch.", step=True)
MASK = Curve(
    "Probability of the mask", "p", "p", "Probability per batch of mixing by the mask instead of linearly.", step=True
)


def own_curves(run: RunData) -> list[Chart]:
    """Return the curves of one run: loss, accuracy, NLL, members, diversity, learning rate, p."""
    sources = {each.name: each for each in run.networks} or {"": run}

    def of(curve: Curve, count: int | None = None) -> dict[str, Points]:
        return {name or curve.unit: _series(each, curve.column) for name, each in list(sources.items())[:count]}

    drawn = [(TOP1, _predictors(sources, "top1")), (NLL, _predictors(sources, "nll")), (LOSS, of(LOSS))]
    drawn += [(DIVERSITY, of(DIVERSITY))] if run.members > 1 else []
    drawn += [(RATE, of(RATE, 1))]  # the same of all networks
    drawn += [(MASK, of(MASK, 1))] if run.recipe is None or run.recipe.members > 1 else []
    return _charts(drawn)


def overlaid_curves(runs: Sequence[RunData]) -> list[Chart]:
    """Return the curves of several runs over each other; of several networks, the first one's."""
    sources = {run.name: run.networks[0] if run.networks else run for run in runs}
    members = {run.recipe.members for run in runs if run.recipe is not None}
    loss = LOSS if len(members) < 2 else LOSS._replace(about=f"{LOSS.about} {SUMMED}")
    drawn = [
        (curve, {name: _series(each, curve.column) for name, each in sources.items()})
        for curve in (TOP1, NLL, loss, ECE, DIVERSITY)
    ]
    return _charts(drawn, 280, list(sources))


def _charts(
    drawn: Sequence[tuple[Curve, dict[str, Points]]], height: int = 220, names: Sequence[str] = ()
) -> list[Chart]:
    """Draw curves; Top1 and NLL of a long training also for its end, which its beginning would flatten."""
    charts = []
    for curve, series in drawn:
        charts.append(_chart(curve, series, height, names))
        last = max((x[-1] for x, _ in series.values() if x), default=0.0)
        if curve in (TOP1, NLL) and last >= LONG:
            start = math.floor(last * 3 / 4 / 5) * 5
            end = {name: _from(points, start) for name, points in series.items()}
            late = curve._replace(title=f"{curve.title}, from epoch {start}", about="The last quarter of the training.")
            charts.append(_chart(late, end, height, names))
    return [chart for chart in charts if chart]


def _from(points: Points, start: float) -> Points:
    kept = [(x, y) for x, y in zip(*points, strict=True) if x >= start]
    return [x for x, _ in kept], [y for _, y in kept]


def _predictors(sources: Mapping[str, RunData], score: str) -> dict[str, Points]:
    """The curves of the ensemble, its members and the held-out images; of several networks, each one's."""
    if len(sources) > 1 or "" not in sources:
        return {name: _series(each, f"test.ensemble.{score}") for name, each in sources.items()}
    run = sources[""]
    count = len({name.split(".")[2] for name in run.curves if name.startswith("test.members.")})
    curves = {"ensemble" if count > 1 else "network": _series(run, f"test.ensemble.{score}")}
    if count > 1:
        curves |= {f"member {m}": _series(run, f"test.members.{m}.{score}") for m in range(count)}
    return curves | {"validation": _series(run, f"validation.ensemble.{score}")}


def _series(run: RunData, column: str) -> Points:
    epochs = run.curves.get("epoch", [])
    return epochs, run.curves.get(column, [math.nan] * len(epochs))


def _chart(
    curve: Curve,
    series: Mapping[str, Points],
    height: int,
    names: Sequence[str],
) -> Chart | None:
    there = {
        name: (x, [curve.factor * value for value in y])
        for name, (x, y) in series.items()
        if any(not math.isnan(value) for value in y)
    }
    if not there:
        return None
    ends = [f"{name} {_last(y):.4g} at epoch {x[-1]:.0f}" for name, (x, y) in list(there.items())[:6]]
    spec = lines(names or list(there), EPOCH, axis(curve.unit), "curves", height, curve.step)
    alt = f"{curve.title} ({curve.unit}) over the epochs: {'; '.join(ends)}."
    return Chart(curve.title, alt, spec, {"curves": stacked(there)}, curve.about, () if names else keys(list(there)))


def _last(values: Sequence[float]) -> float:
    return next((value for value in reversed(values) if not math.isnan(value)), math.nan)
