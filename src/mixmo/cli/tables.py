"""Scores as tables on the terminal."""

from typing import Any

from rich.console import Console
from rich.table import Table


def print_report(scores: dict[str, Any], title: str) -> None:
    """The scores of a run or an ensemble: last and best epoch, ensemble and members, diversity, cost."""
    console = Console(width=max(100, Console().width), highlight=False)
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for column in ("epoch", "who", "Top1 %", "Top5 %", "NLL", "NLLc", "ECE", "Brier"):
        table.add_column(column, justify="left" if column in ("epoch", "who") else "right")
    for which in ("last", "best"):
        report = scores[which]
        epoch = which if which == "last" or "best_epoch" not in scores else f"best ({scores['best_epoch']})"
        rows = [("ensemble" if len(report["members"]) > 1 else "network", report["ensemble"])]
        if len(report["members"]) > 1:
            rows += [(f"member {m}", member) for m, member in enumerate(report["members"])]
        for i, (who, s) in enumerate(rows):
            numbers = [f"{100 * s[k]:.2f}" for k in ("top1", "top5")] + [
                f"{s[k]:.4f}" for k in ("nll", "nllc", "ece", "brier")
            ]
            table.add_row("" if i else epoch, who, *numbers)
    console.print(table)
    diversity = scores["last"]["diversity"]
    if diversity:
        ratio, agreement = diversity["ratio_error"], 100 * diversity["agreement"]
        console.print(f"between members, last epoch: ratio-error {ratio:.3f}, agreement {agreement:.2f} %")
    if "parameters" in scores:
        console.print(
            f"{scores['parameters']:,} parameters, {scores['multiply_adds'] / 1e9:.4f} G multiply-adds a prediction"
        )
    if scores.get("best_by") == "test":
        console.print("best epoch chosen by the test set, as in the paper; --validation N chooses it honestly")
