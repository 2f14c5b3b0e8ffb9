"""Scores as tables on the terminal."""

from mixmo.cli.console import Output, grid, number
from mixmo.evaluation.labelled_images import ModelScores
from mixmo.evaluation.multiplex import MultiplexScores
from mixmo.evaluation.robustness import BriefScores, CorruptionScores, OodScores, mean
from mixmo.evaluation.run_scores import RunScores
from mixmo.metrics import Diversity, Report

SCORED = ("who", "Top1 %", "Top5 %", "NLL", "NLLc", "ECE", "Brier")


def print_report(scores: RunScores, title: str) -> None:
    """The scores of a run or an ensemble: last and best epoch, ensemble and members, diversity, cost."""
    console, summary = Output(100), scores.summary
    console.print(title, style="bold", soft_wrap=True)  # a table's own title would be wrapped to its width
    first, report = next(iter(scores.reports.items()))
    table = grid("epoch", *SCORED, *report.ensemble.own, words=2)
    for which in scores.reports:
        epoch = which if which == "last" or summary.best_epoch is None else f"best ({summary.best_epoch})"
        for i, row in enumerate(_members(scores.reports[which])):
            table.add_row("" if i else epoch, *row)
    console.print(table)
    if report.diversity:
        console.print(f"between members, {first} epoch: {_diversity(report.diversity)}")
    operations = f"{summary.multiply_adds / 1e9:.4f} G multiply-adds"
    console.print(f"{summary.parameters:,} parameters, {operations} a prediction")
    if "best" in scores.reports and summary.best_by == "test":
        console.print("best epoch chosen by the test set, as in the paper; --validation N chooses it honestly")


def _members(report: Report) -> list[list[str]]:
    """Rows of `SCORED` and of the user's own metrics: the ensemble and its members, or the network."""
    rows = [("ensemble" if len(report.members) > 1 else "network", report.ensemble)]
    if len(report.members) > 1:
        rows += [(f"member {m}", member) for m, member in enumerate(report.members)]
    return [
        [who, _percent(s.top1), _percent(s.top5), *map(number, (s.nll, s.nllc, s.ece, s.brier, *s.own.values()))]
        for who, s in rows
    ]


def _percent(share: float) -> str:
    return f"{100 * share:.2f}"


def _diversity(diversity: Diversity) -> str:
    own = [f"{name} {number(value)}" for name, value in diversity.own.items()]
    return ", ".join([f"ratio-error {diversity.ratio_error:.3f}", f"agreement {_percent(diversity.agreement)} %", *own])


def print_answers(scores: ModelScores, title: str) -> None:
    """The scores of networks on labelled images, and whether their calibration holds there."""
    console, report = Output(100), scores.report
    console.print(f"{title} on {scores.on}, {scores.images:,} images", style="bold", soft_wrap=True)
    table = grid(*SCORED, *report.ensemble.own)
    for row in _members(report):
        table.add_row(*row)
    console.print(table)
    if report.diversity:
        console.print(f"between members: {_diversity(report.diversity)}")
    if scores.calibration is None:
        return
    fitted, sets, answered = scores.calibration
    console.print(
        f"at its temperature {fitted.temperature:.4g}: NLL {fitted.nll:.4f}, ECE {fitted.ece:.4f}, "
        f"Brier {fitted.brier:.4f}"
    )
    if sets:
        console.print(
            f"its sets hold the true class for {_percent(sets.held)} % (asked for {100 * sets.level:g} %), "
            f"with {sets.size:.2f} classes on average"
        )
    if answered:
        wrong = "" if answered.wrong is None else f"; of these {_percent(answered.wrong)} % are wrong"
        console.print(
            f"it answers {_percent(answered.share)} % and abstains elsewhere{wrong} "
            f"(asked for {100 * answered.risk:g} % at most)"
        )


def print_corruptions(scores: CorruptionScores, title: str) -> None:
    """Error for every corruption and severity, their means, and the scores over everything."""
    console = Output(100)
    severities = [str(severity) for severity in next(iter(scores.corruptions.values()))]
    console.print(f"{title} on {scores.folder}", style="bold", soft_wrap=True)
    table = grid("Top1 % at severity", *severities, "mean", "Top5 %", "NLL")
    for name, cells in scores.corruptions.items():
        table.add_row(name, *[_percent(cell.top1) for cell in cells.values()], *_three(mean(cells.values())))
    blank = [""] * len(severities)
    table.add_section()
    table.add_row("all of them, pooled", *blank, *_three(scores.pooled))
    table.add_row("clean test set", *blank, *_three(scores.clean))
    console.print(table)
    console.print(
        "mean corruption error: not all of the 15 common corruptions were scored"
        if scores.mce is None
        else f"mean corruption error over the 15 common corruptions (unnormalised): {_percent(scores.mce)} %"
    )
    console.print(
        f"{_epoch(scores.which)}{scores.images:,} images a severity, severities {', '.join(severities)}; no temperature"
    )


def _epoch(which: str | None) -> str:
    """Of runs; saved networks have no other."""
    return f"{which} epoch, " if which else ""


def _three(scores: BriefScores) -> list[str]:
    return [_percent(scores.top1), _percent(scores.top5), f"{scores.nll:.4f}"]


def print_ood(scores: OodScores, title: str) -> None:
    """How well each detector tells the other data set apart."""
    console = Output(100)
    console.print(f"{title}: {scores.outside} told from {scores.inside}", style="bold", soft_wrap=True)
    table = grid("detector", "AUROC %", "AUPR %", "FPR95 %")
    for name, found in scores.detectors.items():
        table.add_row(name, *map(_percent, found))
    console.print(table)
    console.print(
        f"{_epoch(scores.which)}{scores.inside_images:,} images from inside and "
        f"{scores.outside_images:,} from outside, the positives"
    )


def print_multiplexed(scores: MultiplexScores, title: str) -> None:
    """What each number of different images a pass costs in accuracy and gains in speed, beside one image."""
    console = Output(100)
    console.print(f"{title}: different images in one pass", style="bold", soft_wrap=True)
    columns = ("images a pass", "Top1 %", "change", "NLL", "ECE", "G multiply-adds an image", "images/s", "gain")
    table = grid(*columns, words=0)
    first = scores.rows[0]
    for row in scores.rows:
        table.add_row(
            str(row.images_per_pass),
            _percent(row.scores.top1),
            f"{100 * (row.scores.top1 - first.scores.top1):+.2f}",
            f"{row.scores.nll:.4f}",
            f"{row.scores.ece:.4f}",
            number(row.multiply_adds and row.multiply_adds / 1e9),
            f"{row.images_per_second:,.0f}",
            f"x {row.images_per_second / first.images_per_second:.2f}",
        )
    console.print(table)
    console.print(
        f"{_epoch(scores.which)}{scores.images:,} test images in random order, speed on this {scores.device}; "
        "one image a pass is the ensemble"
    )
