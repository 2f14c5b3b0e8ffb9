"""Scores as tables on the terminal, 80 columns wide where they fit."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mixmo.cli.console import grid, lettered, number, print_line, print_table, width
from mixmo.evaluation.comparison import Comparison
from mixmo.evaluation.model_scores import ModelScores
from mixmo.evaluation.multiplex import MultiplexScores
from mixmo.evaluation.robustness import BriefScores, CorruptionScores, OodScores, mean
from mixmo.evaluation.run_scores import RunScores
from mixmo.metrics import Diversity, Report, Scores

COLUMNS = {"top1": "Top1 %", "top5": "Top5 %", "nll": "NLL", "nllc": "NLLc", "ece": "ECE", "brier": "Brier"}


def _shown(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """The scores to show: Top5 only where it is not 100 % in every row, as with five or fewer classes."""
    return [name for name in COLUMNS if name != "top5" or any(row.get("top5", 1.0) != 1.0 for row in rows)]


def _cells(scores: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """Scores as text: shares in percent, a dash for what is not there."""
    values = [(name, scores.get(name)) for name in names]
    return [number(value and 100 * value, 2) if name in ("top1", "top5") else number(value) for name, value in values]


def print_report(scores: RunScores, title: str) -> None:
    """Print the scores of a run or an ensemble: last and best epoch, ensemble and members, diversity, cost."""
    summary, names = scores.summary, _shown(row._asdict() for r in scores.reports.values() for row in r.members)
    print_line(title, "bold")  # a table's own title would be wrapped to its width
    if scores.stored:
        print_line("stored scores, from scores.json: there are no logits to compute them from")
    first, report = next(iter(scores.reports.items()))
    table = grid("epoch", "who", *[COLUMNS[name] for name in names], *report.ensemble.own, words=2)
    best = "best" if summary.best_epoch is None else f"best ({summary.best_epoch})"
    epochs = {best if which == "best" else which: report for which, report in scores.reports.items()}
    if len(epochs) == 2 and scores.reports["best"] == scores.reports["last"]:  # the last epoch is the best one
        epochs = {f"last, {best}": report}
    for epoch, each in epochs.items():
        for i, row in enumerate(_members(each, names)):
            table.add_row("" if i else epoch, *row)
    print_table(table)
    if report.diversity:
        print_line(f"between members, {first} epoch: {_diversity(report.diversity)}")
    operations = f"{summary.multiply_adds / 1e9:.4f} G multiply-adds"
    print_line(f"{summary.parameters:,} parameters, {operations} per prediction")
    if "best" in scores.reports and summary.best_by == "test":
        print_line("best epoch chosen by the test set, as in the paper (--validation N avoids this)")


def _members(report: Report, names: Sequence[str]) -> list[list[str]]:
    """Rows of scores, user-defined ones last: the ensemble and its members, or the network."""
    rows: list[tuple[str, Scores]] = [("ensemble" if len(report.members) > 1 else "network", report.ensemble)]
    if len(report.members) > 1:
        rows += [(f"member {m}", member) for m, member in enumerate(report.members)]
    return [[who, *_cells(s._asdict(), names), *map(number, s.own.values())] for who, s in rows]


def _percent(share: float) -> str:
    return f"{100 * share:.2f}"


def _diversity(diversity: Diversity) -> str:
    own = [f"{name} {number(value)}" for name, value in diversity.own.items()]
    return ", ".join([f"ratio-error {diversity.ratio_error:.3f}", f"agreement {_percent(diversity.agreement)} %", *own])


def print_model_scores(scores: ModelScores, title: str) -> None:
    """Print the scores of networks on labelled images, and of their calibration."""
    report, names = scores.report, _shown(row._asdict() for row in scores.report.members)
    print_line(f"{title} on {scores.on}, {scores.images:,} images", "bold")
    columns = [COLUMNS[name] for name in names]
    print_table(grid("who", *columns, *report.ensemble.own, rows=_members(report, names)))
    if report.diversity:
        print_line(f"between members: {_diversity(report.diversity)}")
    if scores.calibration is None:
        return
    fitted, sets, selective = scores.calibration
    print_line(
        f"at temperature {fitted.temperature:.4g}: NLL {fitted.nll:.4f}, ECE {fitted.ece:.4f}, Brier {fitted.brier:.4f}"
    )
    if sets:
        print_line(
            f"conformal sets: coverage {_percent(sets.held)} % (target {100 * sets.level:g} %), "
            f"{sets.size:.2f} classes on average"
        )
    if selective:
        risk = "-" if selective.wrong is None else f"{_percent(selective.wrong)} %"
        print_line(
            f"selective prediction: coverage {_percent(selective.share)} %, selective risk {risk} "
            f"(maximum {100 * selective.risk:g} %)"
        )


def print_corruptions(scores: CorruptionScores, title: str) -> None:
    """Print Top1 for every corruption and severity, the means, and the scores over everything."""
    severities = [str(severity) for severity in next(iter(scores.corruptions.values()))]
    names = [name for name in _shown([scores.pooled._asdict()]) if name in BriefScores._fields]
    blank = [""] * len(severities)
    print_line(f"{title} on {scores.folder}", "bold")
    table = grid("Top1 % at severity", *severities, "mean", *[COLUMNS[name] for name in names[1:]])
    for name, cells in scores.corruptions.items():
        means = _cells(mean(cells.values())._asdict(), names)
        table.add_row(name, *[_percent(cell.top1) for cell in cells.values()], *means)
    table.add_section()
    table.add_row("all of them, pooled", *blank, *_cells(scores.pooled._asdict(), names))
    table.add_row("clean test set", *blank, *_cells(scores.clean._asdict(), names))
    print_table(table)
    print_line(
        "mean corruption error: not all of the 15 common corruptions were scored"
        if scores.mce is None
        else f"mean corruption error over the 15 common corruptions (unnormalised): {_percent(scores.mce)} %"
    )
    print_line(
        f"{_epoch(scores.which)}{scores.images:,} images per severity, severities {', '.join(severities)}; "
        "no temperature"
    )


def _epoch(which: str | None) -> str:
    """Of runs; saved networks have no other."""
    return f"{which} epoch, " if which else ""


def print_ood(scores: OodScores, title: str) -> None:
    """Print AUROC, AUPR and FPR95 of every detector."""
    print_line(f"{title}: OOD detection, {scores.outside} against {scores.inside}", "bold")
    rows = [(name, *map(_percent, found)) for name, found in scores.detectors.items()]
    print_table(grid("detector", "AUROC %", "AUPR %", "FPR95 %", rows=rows))
    print_line(
        f"{_epoch(scores.which)}{scores.inside_images:,} images from inside, {scores.outside_images:,} from outside. "
        "AUPR: those from outside are the positives. FPR95: share of them accepted where 95 % of the others are"
    )


def print_multiplexed(scores: MultiplexScores, title: str) -> None:
    """Print accuracy and speed for every number of different images per pass, compared with one."""
    print_line(f"{title}: multiplexed inference, M different images per forward pass", "bold")
    table = grid("images", "Top1 %", "change", "NLL", "ECE", "G multiply-adds", "images/s", "gain", words=0)
    first = scores.rows[0]
    for row in scores.rows:
        table.add_row(
            str(row.images_per_pass),
            _percent(row.scores.top1),
            f"{100 * (row.scores.top1 - first.scores.top1):+.2f}",
            f"{row.scores.nll:.4f}",
            f"{row.scores.ece:.4f}",
            number(row.multiply_adds / 1e9),
            f"{row.images_per_second:,.0f}",
            f"x {row.images_per_second / first.images_per_second:.2f}",
        )
    print_table(table)
    print_line(
        f"{_epoch(scores.which)}{scores.images:,} test images in random order, multiply-adds per image, speed on this "
        f"{scores.device}; one image per pass is the ensemble"
    )


def print_comparison(found: Comparison) -> None:
    """Print the scores of runs side by side, their statistics over seeds, and the recipe fields that differ."""
    names, runs = _shown(run.scores for run in found.runs), lettered(found.runs)
    for letter, run in runs.items():
        scored = f"scores of epoch {run.epoch} of {run.recipe['epochs']}" if run.epoch else "no epoch was scored yet"
        print_line(f"{letter}  {run.run}{'' if run.finished else f' (not ended: {scored})'}")
    print_line(f"\nscores ({found.which} epoch)", "bold")
    table = grid("run", *[COLUMNS[name] for name in names])
    # 100 % in all runs of a data set is that of five or fewer classes.
    told = {run.recipe.get("dataset") for run in found.runs if "top5" in _shown([run.scores])}
    for letter, run in runs.items():
        scores = run.scores if run.recipe.get("dataset") in told else run.scores | {"top5": None}
        table.add_row(letter if run.finished else f"{letter} (not ended)", *_cells(scores, names))
    for group in found.seeds:
        of = " ".join(letter for letter, run in runs.items() if run.run in group.runs)
        table.add_row(f"mean of {of}", *_cells(group.mean, names))
        table.add_row(f"std of {of}", *_cells(group.std, names))
    print_table(table)
    if found.recipes:
        print_line("\nrecipes (fields that differ)", "bold")
        cells = [["-" if value is None else str(value) for value in values] for values in found.recipes.values()]
        by_field = grid("field", *runs, rows=[(field, *row) for field, row in zip(found.recipes, cells, strict=True)])
        by_run = grid("run", *found.recipes, rows=zip(runs, *cells, strict=True))
        print_table(min(by_field, by_run, key=width))
