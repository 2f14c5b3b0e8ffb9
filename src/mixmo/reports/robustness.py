"""Scores on corrupted and on OOD images that were measured for a run, and their tables.

In the run directory: JSON files that `mixmo eval RUN --corruptions DIR --json` or `--ood NAME --json` printed. Beside
the folder of its run: what `mixmo reproduce` keeps in OUT/derived.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mixmo.reports.page import Block, Section, Table, number, percent
from mixmo.storage.plain_json import parse_json

OURS = ("scores.json", "dataset.json", "environment.json")


@dataclass
class Measured:
    corrupted: list[dict[str, Any]] = field(default_factory=list)  # as `CorruptionScores.to_dict`, or only `pooled`
    ood: list[dict[str, Any]] = field(default_factory=list)  # as `OodScores.to_dict`


def read_measured(path: Path, which: str) -> Measured:
    """Read what was measured for the run at `path`; files that are something else are passed over."""
    found = Measured()
    for file in sorted(path.glob("*.json")):
        content = _read(file) if file.name not in OURS else {}
        for key, into in (("corrupted", found.corrupted), ("ood", found.ood)):
            if isinstance(content.get(key), dict):
                into.append(content[key])
    kept = _read(path.parent.parent / "derived" / path.name / f"corrupted-{which}.json")
    if isinstance(kept.get("pooled"), dict):
        found.corrupted.append({"folder": kept.get("images", "corrupted images"), "which": which, **kept})
    return found


def _read(file: Path) -> dict[str, Any]:
    try:
        content = parse_json(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def robustness_section(measured: Measured) -> Section | None:
    """Return the tables of what was measured; None if nothing was."""
    blocks: list[Block] = [_corrupted(each) for each in measured.corrupted]
    blocks += [_ood(each) for each in measured.ood]
    return Section("Corrupted and OOD images", blocks) if blocks else None


def _corrupted(scores: dict[str, Any]) -> Table:
    """Top1 of each corruption and severity; or the scores over all of them, where only these were kept."""
    cells: dict[str, dict[str, Any]] = scores.get("corruptions") or {}
    severities = list(next(iter(cells.values()))) if cells else []
    columns = ["Top1 at severity", *severities, "mean", "Top5", "NLL"]

    def means(rows: list[dict[str, Any]]) -> list[str]:
        values = [sum(row[name] for row in rows) / len(rows) for name in ("top1", "top5", "nll")]
        return [percent(values[0]), percent(values[1]), number(values[2])]

    rows = [
        [name, *(percent(cell["top1"]) for cell in row.values()), *means(list(row.values()))]
        for name, row in cells.items()
    ]
    for name, label in (("pooled", "all of them, pooled"), ("clean", "clean test set")):
        if name in scores:
            rows.append([label, *[""] * len(severities), *means([scores[name]])])
    mce = f"; mean corruption error {percent(scores['mce'])}" if scores.get("mce") is not None else ""
    title = f"Corrupted images: {Path(str(scores.get('folder', 'a folder'))).name}"
    return Table(
        columns, rows, f"Scores of the {scores.get('which') or 'saved'} epoch, without temperature{mce}.", title=title
    )


def _ood(scores: dict[str, Any]) -> Table:
    names = ("auroc", "aupr", "fpr95")
    rows = [[name, *(percent(row[key]) for key in names)] for name, row in scores["detectors"].items()]
    title = f"OOD detection: {scores.get('outside')} against {scores.get('inside')}"
    about = "Images from outside are the positives. Higher is better, but for FPR95."
    return Table(["detector", "AUROC", "AUPR", "FPR95"], rows, about, title=title)
