"""The report of several runs side by side."""

from collections.abc import Callable, Sequence
from functools import partial

from mixmo.evaluation.comparison import ComparedRun, Comparison, compare
from mixmo.reports.analysis import Analysis, analyse_logits
from mixmo.reports.calibration_charts import risk_chart
from mixmo.reports.curve_charts import overlaid_curves
from mixmo.reports.found import Found
from mixmo.reports.page import Block, Cell, Charts, Document, Section, Table, Text, number, percent, plain, signed
from mixmo.reports.state import FINISHED, TRAINING, describe
from mixmo.reports.summary import SCORES, SHARES, published, show
from mixmo.reports.trade_offs import calibration_chart, diversity_chart, parameter_chart
from mixmo.reports.vega import keys
from mixmo.reports.words import duration, method
from mixmo.runs.contents import SCORES as COMPARED

MANY = 12  # runs whose names a title has room for


def many_runs(runs: Sequence[Found]) -> Document:
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


def _missing(runs: Sequence[Found]) -> list[str]:
    """What is missing, once for all runs that lack the same."""
    lacking: dict[str, list[str]] = {}
    for run in runs:
        for sentence in run.missing:
            lacking.setdefault(sentence, []).append(run.name)
    return [f"{'all runs' if len(of) == len(runs) else ', '.join(of)}: {sentence}" for sentence, of in lacking.items()]


def letter(place: int) -> str:
    """Return the name of a run in a chart: A to Z, then numbers."""
    return chr(ord("A") + place) if place < 26 else str(place + 1)


def _compared(run: Found) -> ComparedRun:
    scores: dict[str, float | None] = {name: value for name in COMPARED if (value := run.score(name)) is not None}
    return ComparedRun(run.name, run.finished, None, dict(run.fields), scores)


def _scores(runs: Sequence[Found], states: Sequence[str], compared: Comparison) -> Section:
    names = [name for name in COMPARED if any(run.score(name) is not None for run in runs)]
    first = runs[0]
    rows: list[list[Cell]] = []
    for run, state in zip(runs, states, strict=True):
        epoch = run.shown or "no score"
        note = epoch if state == FINISHED else f"{state}, {epoch}"
        rows.append([(run.name, note), *(_beside(run, first, name) for name in names), *_more(run)])
    columns = ["run", *(SCORES[name] for name in names), "members' Top1", "ratio-error", "parameters", "time"]
    columns += ["best epoch", "paper"]
    about = (
        f"Differences in small type are to {first.name}. The last two columns are Top1 and NLLc of the best epoch by "
        "test accuracy, ours and the paper's for the same settings."
    )
    blocks: list[Block] = [Table(columns, rows, about)]
    if compared.seeds:
        blocks.append(_seeds(compared, names))
    return Section("Scores", blocks)


def _beside(run: Found, first: Found, name: str) -> Cell:
    value, base = run.score(name), first.score(name)
    if value is None or base is None or run is first:
        return show(name, value)
    return show(name, value), signed(100 * (value - base), 2) if name in SHARES else signed(value - base)


def _more(run: Found) -> list[Cell]:
    members = [run.score(f"members.{m}.top1") for m in range(run.members)] if run.members > 1 else []
    seconds, size = run.summary.get("seconds"), run.summary.get("parameters")
    paper = published(run)
    theirs = "–" if paper is None else _pair(paper.score.top1, paper.score.nllc)
    best = run.score("top1", "best") is not None
    return [
        ", ".join(f"{100 * value:.2f}" for value in members if value is not None) or "–",
        number(run.score("diversity.ratio_error"), 3),
        "–" if size is None else f"{size / 1e6:.2f} M",
        "–" if not isinstance(seconds, int | float) else duration(seconds),
        _pair(run.score("top1", "best"), run.score("nllc", "best")) if best else "–",
        (theirs, f"at batch {paper.batch}") if paper and paper.batch else theirs,
    ]


def _pair(top1: float | None, nllc: float | None) -> str:
    return f"{percent(top1)}, {number(nllc, 3)}"


def _seeds(compared: Comparison, names: Sequence[str]) -> Table:
    rows: list[list[Cell]] = []
    for group in compared.seeds:
        cells: list[Cell] = [" ± ".join(_spread(name, group.mean.get(name), group.std.get(name))) for name in names]
        rows.append([", ".join(group.runs), str(len(group.runs)), *cells])
    caption = "Finished runs whose recipes differ in the seed only; the standard deviation is that of a sample (n − 1)."
    columns = ["runs", "seeds", *(SCORES[name] for name in names)]
    return Table(columns, rows, caption, title="Mean and standard deviation over seeds")


def _spread(name: str, mean: float | None, std: float | None) -> tuple[str, ...]:
    if mean is None or std is None:
        return ("–",)
    return (f"{100 * mean:.2f}", f"{100 * std:.2f} %") if name in SHARES else (number(mean), number(std))


def _recipes(runs: Sequence[Found], compared: Comparison) -> Section:
    if not compared.recipes:
        return Section("Recipes", [Text("All recipes are the same.")])
    fields = list(compared.recipes)
    rows: list[list[Cell]] = [
        [run.name, *(plain(compared.recipes[field][place]) for field in fields)] for place, run in enumerate(runs)
    ]
    return Section("What differs in the recipes", [Table(["run", *fields], rows)])


def _trade_offs(runs: Sequence[Found]) -> Section:
    names = [run.name for run in runs]
    charts = [make(runs, names) for make in (diversity_chart, parameter_chart, calibration_chart)]
    return Section("Trade-offs", [Charts([chart for chart in charts if chart], keys(names, "point"))])


def _risk(runs: Sequence[Found]) -> Section | None:
    found: dict[str, Analysis] = {}
    for run in runs:
        analysis = run.read("logits", partial(analyse_logits, run.logits, run.classes)) if run.logits else None
        if analysis is not None:
            found[run.name] = analysis
    if not found:
        return None
    risks = {name: next(iter(each.risk.values())) for name, each in found.items()}
    return Section("Risk", [Charts([risk_chart(risks)])], "Of the runs that have their logits.")
