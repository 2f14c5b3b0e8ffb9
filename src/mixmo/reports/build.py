"""`mixmo.report`: from run directories to one HTML page, for a file or a notebook."""

import html
import os
from collections.abc import Sequence
from pathlib import Path

from mixmo.evaluation.pipeline import check_different
from mixmo.reports.comparison_report import letter, many_runs
from mixmo.reports.naming import short_names
from mixmo.reports.page import MARK, Document, render
from mixmo.reports.run_data import read_run
from mixmo.reports.run_report import one_run
from mixmo.runs.directory import WHICH, Run
from mixmo.storage.files import atomic_write
from mixmo.utils.errors import UserError, check_path, unknown

NAME = "report.html"


class Page:
    """A report: one self-contained HTML page. A notebook shows it; `save` writes it to a file.

    Attributes:
        html: The page.
        missing: A sentence for everything that could not be shown.
    """

    def __init__(self, document: Document) -> None:
        self.html, self.missing = render(document), list(document.missing)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page to a file. An existing report is replaced; any other file raises an error."""
        file = check_path("path", path)
        if file.exists() and not is_report(file):
            raise UserError(f"{file} exists and is not a report; give another file")
        with atomic_write(file) as temporary:
            temporary.write_text(self.html, encoding="utf-8")
        return file

    def _repr_html_(self) -> str:
        frame = 'style="width:100%;height:85vh;border:1px solid #8884;border-radius:6px"'
        return f'<iframe title="mixmo report" {frame} srcdoc="{html.escape(self.html)}"></iframe>'


def report(
    *runs: "str | os.PathLike[str] | Run", which: str = "last", data: str | os.PathLike[str] | None = None
) -> Page:
    """Make the report of a run, or of several side by side; a notebook shows it inline.

    A run that is unfinished, damaged or from an earlier version gives a report of what there is.

    Args:
        runs: Run directories.
        which: Epoch whose predictions are shown, "last" or "best".
        data: Folder of the data sets, for thumbnails; by default $MIXMO_DATA, or else `data`.

    Returns:
        The page: `page.save("report.html")` writes it.

    Raises:
        UserError: If there is no run, one is given twice, or `vl-convert-python` is not installed.
    """
    if which not in WHICH:
        raise unknown("epoch", which, WHICH)
    paths = [run.path if isinstance(run, Run) else check_path("run", run) for run in runs]
    if not paths:
        raise UserError("no run was given; give at least one run directory")
    check_different(paths)
    return Page(document(paths, which, None if data is None else check_path("data", data)))


def document(paths: Sequence[Path], which: str = "last", root: Path | None = None) -> Document:
    """Return the content of the report of these runs."""
    if len(paths) == 1:
        return one_run(read_run(paths[0], which), root)
    names = [f"{letter(place)} {name}" for place, name in enumerate(short_names(list(paths)))]
    return many_runs([read_run(path, which, name=name) for path, name in zip(paths, names, strict=True)])


def is_report(file: Path) -> bool:
    """Return whether a file is a report, which may be replaced."""
    with file.open("rb") as opened:
        return MARK.encode() in opened.read(200)
