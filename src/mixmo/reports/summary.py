"""The first section of a run: its scores beside the paper's, its recipe, environment and cost."""

from typing import Any, NamedTuple

from mixmo.reports.naming import method
from mixmo.reports.page import Block, Card, Cards, Section, Table, Tables, number, percent, plain, signed
from mixmo.reports.run_data import RunData
from mixmo.reproduce.paper_scores import PaperScore, at_published_batch, paper_score
from mixmo.utils.text import duration

SCORES = {"top1": "Top1", "top5": "Top5", "nll": "NLL", "nllc": "NLLc", "ece": "ECE", "ecec": "ECEc", "brier": "Brier"}
SHARES = ("top1", "top5")


def show(name: str, value: float | None) -> str:
    """Return a score as `mixmo eval` prints it."""
    return percent(value) if name in SHARES else number(value)


class Published(NamedTuple):
    """The paper's score for the recipe of a run."""

    score: PaperScore
    batch: int | None  # the paper's batch size, where the run has another


def published(run: RunData) -> Published | None:
    """Return the paper's score for a run; if there is none for its batch size, that for the paper's."""
    if run.recipe is None:
        return None
    if exact := paper_score(run.recipe):
        return Published(exact, None)
    recipe = at_published_batch(run.recipe)
    near = paper_score(recipe)
    return Published(near, recipe.batch_size) if near else None


def summary_section(run: RunData) -> Section:
    blocks: list[Block] = [Cards(_cards(run))]
    facts = Table(["", ""], _facts(run), words=2)
    blocks.append(Tables([_score_table(run), facts]) if run.scores else facts)
    if run.fields:
        rows = [[key, plain(value)] for key, value in run.fields.items()]
        blocks.append(Table(["field", "value"], rows, words=2, long=True, title="All fields of the recipe"))
    return Section("Summary", blocks)


def _cards(run: RunData) -> list[Card]:
    which, paper = run.shown, published(run)
    epoch = f"{which} epoch" if which in ("last", "best") else f"after {which}"
    cards = []
    if not run.finished and run.recipe is not None and not run.networks and run.curves:
        done, epochs = run.curves["epoch"][-1], run.recipe.epochs
        cards.append(Card("Progress", f"{100 * done / epochs:.0f} %", f"epoch {done:.0f} of {epochs}{_left(run)}"))
    for name in ("top1", "nllc", "nll", "ece"):
        if (value := run.score(name)) is None:
            continue
        note = epoch
        theirs: float | None = getattr(paper.score, name, None) if paper else None
        if paper and theirs and (ours := run.score(name, paper.score.which)):
            gap = f"{signed(100 * (ours - theirs), 2)} points" if name == "top1" else signed(ours - theirs, 3)
            printed = percent(theirs) if name == "top1" else number(theirs, 3)
            note = f"paper {printed}, our {paper.score.which} epoch {gap}"
        cards.append(Card(SCORES[name], show(name, value), note))
    if (ratio := run.score("diversity.ratio_error")) is not None:
        cards.append(Card("Ratio-error", number(ratio, 3), f"diversity of {run.members} members"))
    if "parameters" in run.summary:
        cards.append(Card("Parameters", _count(run.summary["parameters"]), _operations(run)))
    if (seconds := _seconds(run)) is not None:
        cards.append(Card("Training", duration(seconds), str(run.environment.get("device_name") or "")))
    return cards


def _score_table(run: RunData) -> Table:
    """Ensemble and members of every epoch that has scores."""
    names = [name for name in SCORES if any(f"ensemble.{name}" in scores for scores in run.scores.values())]
    rows, best, paper = [], run.summary.get("best_epoch"), published(run)
    for which in run.scores:
        epoch = f"best ({best})" if which == "best" and best is not None else which
        who = ["ensemble", *(f"member\u00a0{m}" for m in range(run.members))] if run.members > 1 else ["network"]
        for place, predictor in enumerate(who):
            prefix = f"members.{place - 1}" if place else "ensemble"
            values = [show(name, run.score(f"{prefix}.{name}", which)) for name in names]
            rows.append(["" if place else epoch, predictor, *values])
        if paper and paper.score.which == which:
            known = {"top1": percent(paper.score.top1), "nllc": number(paper.score.nllc, 3)}
            rows.append(["", "the\u00a0paper", *(known.get(name, "") for name in names)])
    captions = []
    if run.summary.get("best_by") == "test" and "best" in run.scores:
        captions.append("The best epoch was selected on the test set, as in the paper (--validation N avoids this).")
    if paper and paper.batch and run.recipe:
        ghost = f", normalised in ghost batches of {run.recipe.ghost}" if run.recipe.ghost else ""
        captions.append(f"The paper's batch size is {paper.batch}, this run's {run.recipe.batch_size}{ghost}.")
    return Table(["epoch", "who", *(SCORES[name] for name in names)], rows, " ".join(captions), words=2)


def _facts(run: RunData) -> list[list[str]]:
    facts: dict[str, Any] = {}
    if run.recipe is not None:
        name, changes = method(run.recipe)
        facts["recipe"] = f"{name}, seed {run.recipe.seed}"
        facts["differs in"] = ", ".join(f"{key} {plain(value)}" for key, value in changes.items()) or "nothing"
        facts["network"] = f"{run.recipe.architecture}, {run.recipe.members} members, {run.recipe.precision}"
    environment = run.environment
    facts["device"] = environment.get("device_name")
    versions = [f"{key} {environment[key]}" for key in ("mixmo", "torch", "python", "cuda") if environment.get(key)]
    facts["versions"] = ", ".join(versions)
    facts["commit"] = environment.get("commit")
    facts["folder"] = str(run.path)
    return [[key, plain(value)] for key, value in facts.items() if value]


def _seconds(run: RunData) -> float | None:
    stored = run.summary.get("seconds")
    curve = run.curves.get("seconds", [])
    return stored if isinstance(stored, int | float) else curve[-1] if curve else None


def _left(run: RunData) -> str:
    """Training and evaluation that are left, at the pace so far."""
    done, seconds = run.curves["epoch"][-1], _seconds(run)
    if seconds is None or run.recipe is None:
        return ""
    spent = seconds + sum(value for value in run.curves.get("evaluation_seconds", []) if value == value)
    return f", about {duration(spent / done * (run.recipe.epochs - done))} of training left"


def _count(value: float) -> str:
    return f"{value / 1e6:.2f} M" if value >= 1e6 else f"{value:,.0f}"


def _operations(run: RunData) -> str:
    operations = run.summary.get("multiply_adds")
    return f"{operations / 1e9:.4f} G multiply-adds" if isinstance(operations, int | float) else ""
