"""Scores as tables on the terminal."""

from typing import Any

from mixmo.cli.console import Output, grid, number
from mixmo.metrics import Diversity, Scores
from mixmo.runs import WHICH

SCORED = ("who", "Top1 %", "Top5 %", "NLL", "NLLc", "ECE", "Brier")


def print_report(scores: dict[str, Any], title: str) -> None:
    """The scores of a run or an ensemble: last and best epoch, ensemble and members, diversity, cost."""
    console = Output(100)
    console.print(title, style="bold", soft_wrap=True)  # a table's own title would be wrapped to its width
    scored = [which for which in WHICH if which in scores]
    table = grid("epoch", *SCORED, *_own(scores[scored[0]]["ensemble"], Scores), words=2)
    for which in scored:
        epoch = which if which == "last" or "best_epoch" not in scores else f"best ({scores['best_epoch']})"
        for i, row in enumerate(_members(scores[which])):
            table.add_row("" if i else epoch, *row)
    console.print(table)
    if diversity := scores[scored[0]]["diversity"]:
        console.print(f"between members, {scored[0]} epoch: {_diversity(diversity)}")
    operations = f"{scores['multiply_adds'] / 1e9:.4f} G multiply-adds"
    console.print(f"{scores['parameters']:,} parameters, {operations} a prediction")
    if "best" in scored and scores["best_by"] == "test":
        console.print("best epoch chosen by the test set, as in the paper; --validation N chooses it honestly")


def _members(report: dict[str, Any]) -> list[list[str]]:
    """Rows of `SCORED` and of the user's own metrics: the ensemble and its members, or the network."""
    rows = [("ensemble" if len(report["members"]) > 1 else "network", report["ensemble"])]
    if len(report["members"]) > 1:
        rows += [(f"member {m}", member) for m, member in enumerate(report["members"])]
    shares, numbers = ("top1", "top5"), ("nll", "nllc", "ece", "brier", *_own(report["ensemble"], Scores))
    return [[who, *(f"{100 * s[k]:.2f}" for k in shares), *(number(s[k]) for k in numbers)] for who, s in rows]


def _own(scores: dict[str, Any], ours: type[Scores | Diversity]) -> list[str]:
    """The names of what the user added to our scores."""
    return [name for name in scores if name not in ours._fields]


def _diversity(diversity: dict[str, Any]) -> str:
    own = [f"{name} {number(diversity[name])}" for name in _own(diversity, Diversity)]
    ours = [f"ratio-error {diversity['ratio_error']:.3f}", f"agreement {100 * diversity['agreement']:.2f} %"]
    return ", ".join(ours + own)


def print_answers(scores: dict[str, Any], title: str) -> None:
    """The scores of networks on labelled images, and whether their calibration holds there."""
    console = Output(100)
    console.print(f"{title} on {scores['on']}, {scores['images']:,} images", style="bold", soft_wrap=True)
    table = grid(*SCORED, *_own(scores["ensemble"], Scores))
    for row in _members(scores):
        table.add_row(*row)
    console.print(table)
    if scores["diversity"]:
        console.print(f"between members: {_diversity(scores['diversity'])}")
    if fitted := scores.get("calibrated"):
        console.print(
            f"at its temperature {fitted['temperature']:.4g}: NLL {fitted['nll']:.4f}, ECE {fitted['ece']:.4f}, "
            f"Brier {fitted['brier']:.4f}"
        )
    if sets := scores.get("sets"):
        console.print(
            f"its sets hold the true class for {100 * sets['held']:.2f} % (asked for {100 * sets['level']:g} %), "
            f"with {sets['size']:.2f} classes on average"
        )
    if answered := scores.get("answered"):
        wrong = "" if answered["wrong"] is None else f"; of these {100 * answered['wrong']:.2f} % are wrong"
        console.print(
            f"it answers {100 * answered['share']:.2f} % and abstains elsewhere{wrong} "
            f"(asked for {100 * answered['risk']:g} % at most)"
        )


def print_corruptions(scores: dict[str, Any], title: str) -> None:
    """Error for every corruption and severity, their means, and the scores over everything."""
    console = Output(100)
    severities = list(next(iter(scores["corruptions"].values())))
    console.print(f"{title} on {scores['folder']}", style="bold", soft_wrap=True)
    table = grid("Top1 % at severity", *severities, "mean", "Top5 %", "NLL")
    for name, cells in scores["corruptions"].items():
        means = {key: sum(cell[key] for cell in cells.values()) / len(cells) for key in ("top1", "top5", "nll")}
        table.add_row(name, *[f"{100 * cells[s]['top1']:.2f}" for s in severities], *_three(means))
    blank = [""] * len(severities)
    table.add_section()
    table.add_row("all of them, pooled", *blank, *_three(scores["pooled"]))
    table.add_row("clean test set", *blank, *_three(scores["clean"]))
    console.print(table)
    mce = scores["mce"]
    console.print(
        "mean corruption error: not all of the 15 common corruptions were scored"
        if mce is None
        else f"mean corruption error over the 15 common corruptions (unnormalised): {100 * mce:.2f} %"
    )
    console.print(
        f"{_epoch(scores)}{scores['images']:,} images a severity, severities {', '.join(severities)}; no temperature"
    )


def _epoch(scores: dict[str, Any]) -> str:
    """Of runs; saved networks have no other."""
    return f"{scores['which']} epoch, " if scores["which"] else ""


def _three(scores: dict[str, float]) -> list[str]:
    return [f"{100 * scores['top1']:.2f}", f"{100 * scores['top5']:.2f}", f"{scores['nll']:.4f}"]


def print_ood(scores: dict[str, Any], title: str) -> None:
    """How well each detector tells the other data set apart."""
    console = Output(100)
    console.print(f"{title}: {scores['outside']} told from {scores['inside']}", style="bold", soft_wrap=True)
    table = grid("detector", "AUROC %", "AUPR %", "FPR95 %")
    for name, found in scores["detectors"].items():
        table.add_row(name, *[f"{100 * found[key]:.2f}" for key in ("auroc", "aupr", "fpr95")])
    console.print(table)
    console.print(
        f"{_epoch(scores)}{scores['inside_images']:,} images from inside and "
        f"{scores['outside_images']:,} from outside, the positives"
    )


def print_multiplexed(scores: dict[str, Any], title: str) -> None:
    """What each number of different images a pass costs in accuracy and gains in speed, beside one image."""
    console = Output(100)
    console.print(f"{title}: different images in one pass", style="bold", soft_wrap=True)
    columns = ("images a pass", "Top1 %", "change", "NLL", "ECE", "G multiply-adds an image", "images/s", "gain")
    table = grid(*columns, words=0)
    first = scores["rows"][0]
    for row in scores["rows"]:
        table.add_row(
            str(row["images_per_pass"]),
            f"{100 * row['top1']:.2f}",
            f"{100 * (row['top1'] - first['top1']):+.2f}",
            f"{row['nll']:.4f}",
            f"{row['ece']:.4f}",
            number(row["multiply_adds"] and row["multiply_adds"] / 1e9),
            f"{row['images_per_second']:,.0f}",
            f"x {row['images_per_second'] / first['images_per_second']:.2f}",
        )
    console.print(table)
    console.print(
        f"{_epoch(scores)}{scores['images']:,} test images in random order, speed on this {scores['device']}; "
        "one image a pass is the ensemble"
    )
