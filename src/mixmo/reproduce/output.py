"""Write a table as Markdown, CSV and a figure."""

from contextlib import suppress
from pathlib import Path
from typing import Any

from mixmo import data
from mixmo.data.types import Dataset
from mixmo.evaluation.analysis import columns
from mixmo.evaluation.analysis import to_csv as epochs_csv
from mixmo.plots import dynamics, filters, loss_weights, masks
from mixmo.plots.style import save
from mixmo.reproduce import figures
from mixmo.reproduce.execute import say
from mixmo.reproduce.report import Report
from mixmo.reproduce.store import Store
from mixmo.reproduce.text import slug, to_csv
from mixmo.runs.directory import Run
from mixmo.storage.files import atomic_write
from mixmo.utils.errors import UserError


def write(report: Report, text: str, store: Store, root: Path | None) -> Path:
    """Write all files of a table and return the Markdown one; the others have the same name."""
    folder, name = store.out / "tables" / slug(report.plan), report.plan.table.name
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / f"{name}.md", text)
    _write(folder / f"{name}.csv", to_csv(report))
    shown = shown_runs(report, store)
    if report.plan.table.picture.kind == "dynamics" and shown:
        _write(folder / f"{name}-epochs.csv", epochs_csv({label: columns(run) for label, run in shown.items()}))
    try:
        drawn = picture(report, shown, root)
    except UserError as error:  # for want of matplotlib, say: the numbers are there without it
        say(f"{name}: no picture: {error}")
        drawn = None
    if drawn is not None:
        save(drawn, folder / f"{name}.png", force=True)
    return folder / f"{name}.md"


def _write(path: Path, text: str) -> None:
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def shown_runs(report: Report, store: Store) -> dict[str, Run]:
    """Return the run of the first seed for every row; one whose epochs cannot be read is left out."""
    shown: dict[str, Run] = {}
    kind = report.plan.table.picture.kind
    needed = ["best.safetensors", "dataset.json"] if kind == "filters" else ["metrics.jsonl"]
    for (i, _), cell in report.plan.cells.items():
        run = store.find(cell.groups[0][0], needed)
        with suppress(UserError):
            if run is not None and (kind != "dynamics" or columns(run)):
                shown.setdefault(report.plan.table.rows[i].label, run)
    return shown


def picture(report: Report, shown: dict[str, Run], root: Path | None) -> Any | None:
    """Draw the figure of a table; None if it would show runs and there are none."""
    kind = report.plan.table.picture.kind
    if kind in ("dynamics", "filters") and not shown:
        return None
    if kind == "weights":
        drawn = loss_weights.draw()
    elif kind == "masks":
        drawn = masks.draw(some_images(root))
    elif kind == "filters":
        drawn = filters.draw([next(iter(shown.values()))], "best")
    elif kind == "dynamics":
        drawn = dynamics.draw(list(shown.values()))
        for text, label in zip(drawn.legends[0].get_texts(), shown, strict=True):
            text.set_text(label)  # rows say more than folders
    else:
        return figures.draw(report)
    figures.caption(drawn, report, "")
    return drawn


def some_images(root: Path | None) -> Dataset:
    """Return CIFAR-100 if available, else the digits enlarged: on 8 x 8 pixels some masks are all or nothing."""
    try:
        return data.load("cifar100", root, train=False)
    except UserError:
        digits = data.load("digits")
        large_NHWC = digits.test.resident.repeat_interleave(4, 1).repeat_interleave(4, 2)
        return digits._replace(test=digits.test._replace(images=large_NHWC))
