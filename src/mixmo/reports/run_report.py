"""The report of one run."""

from collections.abc import Callable
from pathlib import Path

from mixmo.reports.analysis import Analysis, analyse_logits
from mixmo.reports.calibration_charts import calibration_charts
from mixmo.reports.class_charts import SQUARE, activity_chart, class_chart, confusion_chart, encoder_chart
from mixmo.reports.curve_charts import own_curves
from mixmo.reports.filters import measure_filters
from mixmo.reports.naming import method
from mixmo.reports.page import Block, Charts, Document, Gallery, Picture, Section, Table, Text, number, percent
from mixmo.reports.robustness import robustness_section
from mixmo.reports.run_data import RunData
from mixmo.reports.run_state import describe
from mixmo.reports.summary import summary_section
from mixmo.reports.thumbnails import thumbnails


def one_run(
    run: RunData, root: Path | None = None, weights: bool = True, state: str | None = None, reload: int | None = None
) -> Document:
    """Lay out the report of a run.

    Args:
        run: What is in its folder.
        root: Folder of the data sets, for thumbnails.
        weights: Whether to read the weights, for encoders and filters.
        state: Of the run; by default as its folder shows it.
        reload: Seconds after which the page reads itself again.
    """
    state = state or describe(run.path, run.finished)
    subtitle = method(run.recipe)[0] if run.recipe is not None else "a run without a readable recipe"
    document = Document(run.path.resolve().name, subtitle, state, missing=run.missing, reload=reload)

    def add(what: str, make: Callable[[], Section | None]) -> None:
        if (section := run.read(what, make)) is not None and section.blocks:
            document.sections.append(section)

    add("summary", lambda: summary_section(run))
    add("curves", lambda: Section("Curves", [Charts(own_curves(run))]) if _has_curves(run) else None)
    if run.logits is not None:
        logits = run.logits
        analysis = run.read("logits", lambda: analyse_logits(logits, run.classes))
        if analysis is not None:
            add("calibration", lambda: _calibration(run, analysis))
            add("classes", lambda: _classes(analysis))
            add("disagreements", lambda: _disagreements(run, analysis, root))
    if weights:
        add("filters", lambda: _filters(run))
    add("robustness", lambda: robustness_section(run.measured))
    return document


def _has_curves(run: RunData) -> bool:
    return bool(run.curves) or any(network.curves for network in run.networks)


def _calibration(run: RunData, analysis: Analysis) -> Section:
    which = run.which if run.which in run.scores else None
    charts = calibration_charts(analysis, run.score("ece", which), run.score("ecec", which))
    return Section("Calibration and risk", [Charts(charts)], f"On the test images, at the {run.which} epoch.")


def _classes(analysis: Analysis) -> Section:
    scores = analysis.classes
    charts = [class_chart(scores)]
    if len(analysis.matrix) <= SQUARE and len(scores) == len(analysis.matrix):
        charts.append(confusion_chart(analysis.matrix, [score.name for score in scores]))
    pairs = [[pair.true, pair.predicted, str(pair.images), percent(pair.share, 1)] for pair in analysis.confused]
    members = [f"member {m}" for m in range(len(scores[0].members))]
    rows = [
        [s.name, str(s.samples), percent(s.top1), percent(s.precision), number(s.nll), *map(percent, s.members)]
        for s in sorted(scores, key=lambda score: score.top1)
    ]
    blocks: list[Block] = [Charts(charts)]
    if pairs:
        columns = ["true class", "predicted as", "images", "of the class"]
        blocks.append(Table(columns, pairs, words=2, title="Most confused pairs"))
    columns = ["class", "images", "Top1", "precision", "NLL", *members]
    blocks.append(Table(columns, rows, title=f"Scores of all {len(rows)} classes", long=True))
    return Section("Classes", blocks)


def _disagreements(run: RunData, analysis: Analysis, root: Path | None) -> Section | None:
    if not analysis.disagreements:
        return None
    images = thumbnails(run, [each.place for each in analysis.disagreements], root)
    pictures = [
        Picture(
            images.get(each.place),
            f"test image {each.place}, {each.true}",
            [("true", each.true), ("ensemble", _guess(each.true, *each.ensemble))]
            + [(f"member {m}", _guess(each.true, *guess)) for m, guess in enumerate(each.members)],
        )
        for each in analysis.disagreements
    ]
    about = "Test images with the largest mutual information between class and member."
    blocks: list[Block] = (
        [] if images else [Text("The images are not available; give the folder of the data sets by --data.")]
    )
    return Section("Where the members disagree most", [*blocks, Gallery(pictures)], about)


def _guess(true: str, name: str, probability: float) -> str:
    return f"{name} {100 * probability:.0f}\u00a0%\u00a0{'✓' if name == true else '✗'}"


def _filters(run: RunData) -> Section | None:
    filters = measure_filters(run)
    if filters is None:
        return None
    charts = [encoder_chart(filters)] if len(filters.encoders) > 1 else []
    charts.append(activity_chart({"network": filters.active}))
    about = f"Measured on the weights of the {run.which} epoch{'' if run.finished else ' so far'}."
    return Section("Encoders and filters", [Charts(charts)], about)
