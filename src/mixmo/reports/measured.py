"""Scores on corrupted and on OOD images that were measured for a run.

In the run directory: JSON files that `mixmo eval RUN --corruptions DIR --json` or `--ood NAME --json` printed. Beside
the folder of its run: what `mixmo reproduce` keeps in OUT/derived.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
