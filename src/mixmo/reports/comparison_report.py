"""The report of several runs side by side."""

from collections.abc import Callable, Sequence
from functools import partial

from mixmo.evaluation.comparison import ComparedRun, Comparison, compare
from mixmo.reports.analysis import Analysis, analyse_logits
from mixmo.reports.calibration_charts import risk_chart
from mixmo.reports.curve_charts import overlaid_curves
from mixmo.reports.naming import method
from mixmo.reports.page import Block, Cell, Charts, Document, Section, Table, Text, number, percent, plain, signed
from mixmo.reports.run_data import RunData
from mixmo.reports.run_state import FINISHED, TRAINING, describe
from mixmo.reports.summary import SCORES, SHARES, published, show
from mixmo.reports.trade_offs import calibration_chart, diversity_chart, parameter_chart
from mixmo.reports.vega import keys
from mixmo.runs.contents import SCORES as COMPARED
from mixmo.utils.text import duration

MANY = 12  # runs whose names a title has room for


def many_runs(runs: Sequence[RunData]) -> Document:
    """Lay out the report of several runs; differences are to the first."""
    states = [describe(run.path, run.finished) for run in runs]
    state = FINISHED if set(states) == {FINISHED} else TRAINING if TRAINING in states else "not all finished"
    names = {method(run.recipe)[0] for run in runs if run.recipe is not None}
    document = Document(f"{len(runs)} runs", ", ".join(sorted(names)[:MANY]), state)
    compared = compare([_compared(run) for run in runs], runs[0].which)
    with_logits = [run for run in runs if run.logits is not None]

    def add(what: str, make: Callable[[], Section | None]) -> None:
        if (section := runs[0].read(what, make)) is not None and section.blocks:
            document.sections.append(section)

    add("scores", lambda: _scores(runs, states, compared))
    add("recipes", lambda: _recipes(runs, compared))
    add("curves", lambda: Section("Curves", [Charts(overlaid_curves(runs), keys([run.name for run in runs]))]))
    add("trade-offs", lambda: _trade_offs(runs))
    add("calibration", lambda: _risk(with_logits))
    document.missing = _missing(runs)
    return document


def _missing(runs: Sequence[RunData]) -> list[str]:
    """What is missing, once for all runs that lack the same."""
    lacking: dict[str, list[str]] = {}
    for run in runs:
        for sentence in run.missing:
            lacking.setdefault(sentence, []).append(run.name)
    return [f"{'all runs' if len(of) == len(runs) else ', '.join(of)}: {sentence}" for sentence, of in lacking.items()]


def letter(place: int) -> str:
    """Return the name of a run in a chart: A to Z, then numbers."""
    return chr(ord("A") + place) if place < 26 else str(place + 1)


def _compared(run: RunData) -> ComparedRun:
    scores: dict[str, float | None] = {name: value for name in COMPARED if (value := run.score(name)) is not None}
    return ComparedRun(run.name, run.finished, None, dict(run.fields), scores)


def _scores(runs: Sequence[RunData], states: Sequence[str], compared: Comparison) -> Section:
    names = [name for name in COMPARED if any(run.score(name) is not None for run in runs)]
    first = runs[0]
    rows: list[list[Cell]] = []
    for run, state in zip(runs, states, strict=True):
        epoch = run.shown or "no score"
        usual = state == FINISHED and epoch == first.which
        name: Cell = run.name if usual else (run.name, epoch if state == FINISHED else f"{state}, {epoch}")
        rows.append([name, *(_beside(run, first, name) for name in names), *_diversity(run)])
    columns = ["run", *(SCORES[name] for name in names), "members' Top1 %", "ratio-error"]
    about = f"Scores of the {first.which} epoch, the best in bold; in small type, the difference to {first.name}."
    blocks: list[Block] = [Table(columns, rows, about, bold=_best(runs, names))]
    if compared.seeds:
        blocks.append(_seeds(compared, names))
    blocks.append(_cost(runs))
    return Section("Scores", blocks)


def _best(runs: Sequence[RunData], names: Sequence[str]) -> frozenset[tuple[int, int]]:
    """Return the places in the table of the best of each score: the largest Top1 and Top5, the smallest others."""
    places = set()
    for column, name in enumerate(names, start=1):
        values = {row: value for row, run in enumerate(runs) if (value := run.score(name)) is not None}
        best = (max if name in SHARES else min)(values.values())
        places |= {(row, column) for row, value in values.items() if value == best and len(values) > 1}
    return frozenset(places)


def _beside(run: RunData, first: RunData, name: str) -> Cell:
    value, base = run.score(name), first.score(name)
    if value is None or base is None or run is first:
        return show(name, value)
    return show(name, value), signed(100 * (value - base), 2) if name in SHARES else signed(value - base)


def _diversity(run: RunData) -> list[Cell]:
    members = [run.score(f"members.{m}.top1") for m in range(run.members)] if run.members > 1 else []
    top1 = ", ".join(f"{100 * value:.2f}" for value in members if value is not None)
    return [top1 or "–", number(run.score("diversity.ratio_error"), 3)]


def _cost(runs: Sequence[RunData]) -> Table:
    rows: list[list[Cell]] = []
    for run in runs:
        seconds, size, paper = run.summary.get("seconds"), run.summary.get("parameters"), published(run)
        top1, nllc = run.score("top1", "best"), run.score("nllc", "best")
        theirs = (None, None) if paper is None else (paper.score.top1, paper.score.nllc)
        rows.append(
            [
                run.name,
                "–" if size is None else f"{size / 1e6:.2f} M",
                duration(seconds) if isinstance(seconds, int | float) else "–",
                _to_paper(percent(top1), top1, theirs[0], 100, 2),
                (percent(theirs[0]), f"at batch {paper.batch}") if paper and paper.batch else percent(theirs[0]),
                _to_paper(number(nllc, 3), nllc, theirs[1], 1, 3),
                number(theirs[1], 3),
            ]
        )
    columns = ["run", "parameters", "training", "Top1", "paper's", "NLLc", "paper's"]
    caption = (
        "Top1 and NLLc of the best epoch by test accuracy, as in the paper; in small type, the difference to the "
        "paper's score for the same settings."
    )
    return Table(columns, rows, caption, title="Cost, and the best epoch beside the paper")


def _to_paper(shown: str, ours: float | None, theirs: float | None, factor: float, digits: int) -> Cell:
    return shown if ours is None or theirs is None else (shown, signed(factor * (ours - theirs), digits))


def _seeds(compared: Comparison, names: Sequence[str]) -> Table:
    rows: list[list[Cell]] = []
    for group in compared.seeds:
        cells: list[Cell] = [" ± ".join(_spread(name, group.mean.get(name), group.std.get(name))) for name in names]
        rows.append([", ".join(group.runs), str(len(group.runs)), *cells])
    caption = "Finished runs whose recipes differ only in the seed; sample standard deviation (n − 1)."
    columns = ["runs", "seeds", *(SCORES[name] for name in names)]
    return Table(columns, rows, caption, title="Mean and standard deviation over seeds")


def _spread(name: str, mean: float | None, std: float | None) -> tuple[str, ...]:
    if mean is None or std is None:
        return ("–",)
    return (f"{100 * mean:.2f}", f"{100 * std:.2f} %") if name in SHARES else (number(mean), number(std))


def _recipes(runs: Sequence[RunData], compared: Comparison) -> Section:
    if not compared.recipes:
        return Section("Recipes", [Text("All recipes are the same.")])
    fields = list(compared.recipes)
    rows: list[list[Cell]] = [
        [run.name, *(plain(compared.recipes[field][place]) for field in fields)] for place, run in enumerate(runs)
    ]
    return Section("What differs in the recipes", [Table(["run", *fields], rows)])


def _trade_offs(runs: Sequence[RunData]) -> Section:
    names = [run.name for run in runs]
    charts = [make(runs, names) for make in (diversity_chart, parameter_chart, calibration_chart)]
    return Section("Trade-offs", [Charts([chart for chart in charts if chart], keys(names, "point"))])


def _risk(runs: Sequence[RunData]) -> Section | None:
    found: dict[str, Analysis] = {}
    for run in runs:
        analysis = run.read("logits", partial(analyse_logits, run.logits, run.classes)) if run.logits else None
        if analysis is not None:
            found[run.name] = analysis
    if not found:
        return None
    risks = {name: next(iter(each.risk.values())) for name, each in found.items()}
    return Section("Risk", [Charts([risk_chart(risks)])], "Only runs with stored logits.")
