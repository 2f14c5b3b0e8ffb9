"""The first section of a run: its scores beside the paper's, its recipe, environment and cost."""

from typing import Any, NamedTuple

from mixmo.reports.found import Found
from mixmo.reports.page import Block, Card, Cards, Section, Table, Text, number, percent, plain, signed
from mixmo.reports.words import duration, method
from mixmo.reproduce.paper_scores import PaperScore, at_published_batch, paper_score

SCORES = {"top1": "Top1", "top5": "Top5", "nll": "NLL", "nllc": "NLLc", "ece": "ECE", "ecec": "ECEc", "brier": "Brier"}
SHARES = ("top1", "top5")


def show(name: str, value: float | None) -> str:
    """Return a score as `mixmo eval` prints it."""
    return percent(value) if name in SHARES else number(value)


class Published(NamedTuple):
    """The paper's score for the recipe of a run."""

    score: PaperScore
    batch: int | None  # the paper's batch size, where the run has another


def published(found: Found) -> Published | None:
    """Return the paper's score for a run; if there is none for its batch size, that for the paper's."""
    if found.recipe is None:
        return None
    if exact := paper_score(found.recipe):
        return Published(exact, None)
    recipe = at_published_batch(found.recipe)
    near = paper_score(recipe)
    return Published(near, recipe.batch_size) if near else None


def summary_section(found: Found) -> Section:
    blocks: list[Block] = [Cards(_cards(found))]
    if found.scores:
        blocks.append(_score_table(found))
        if found.summary.get("best_by") == "test" and "best" in found.scores:
            blocks.append(
                Text("The best epoch was chosen by the test set, as in the paper (--validation N avoids this).")
            )
    blocks.append(Table(["", ""], _facts(found), words=2))
    if found.fields:
        rows = [[key, plain(value)] for key, value in found.fields.items()]
        blocks.append(Table(["field", "value"], rows, words=2, long=True, title="All fields of the recipe"))
    return Section("Summary", blocks)


def _cards(found: Found) -> list[Card]:
    which, paper = found.shown, published(found)
    epoch = f"{which} epoch" if which in ("last", "best") else f"after {which}"
    cards = []
    if not found.finished and found.recipe is not None and not found.networks and found.curves:
        done, epochs = found.curves["epoch"][-1], found.recipe.epochs
        cards.append(Card("Progress", f"{100 * done / epochs:.0f} %", f"epoch {done:.0f} of {epochs}{_left(found)}"))
    for name in ("top1", "nllc", "nll", "ece"):
        if (value := found.score(name)) is None:
            continue
        note = epoch
        theirs: float | None = getattr(paper.score, name, None) if paper else None
        if paper and theirs and (ours := found.score(name, paper.score.which)):
            gap = f"{signed(100 * (ours - theirs), 2)} points" if name == "top1" else signed(ours - theirs, 3)
            printed = percent(theirs) if name == "top1" else number(theirs, 3)
            note = f"paper {printed}, our {paper.score.which} epoch {gap}"
        cards.append(Card(SCORES[name], show(name, value), note))
    if (ratio := found.score("diversity.ratio_error")) is not None:
        cards.append(Card("Ratio-error", number(ratio, 3), f"diversity of {found.members} members"))
    if "parameters" in found.summary:
        cards.append(Card("Parameters", _count(found.summary["parameters"]), _operations(found)))
    if (seconds := _seconds(found)) is not None:
        cards.append(Card("Training", duration(seconds), str(found.environment.get("device_name") or "")))
    return cards


def _score_table(found: Found) -> Table:
    """Ensemble and members of every epoch that has scores."""
    names = [name for name in SCORES if any(f"ensemble.{name}" in scores for scores in found.scores.values())]
    rows, best, paper = [], found.summary.get("best_epoch"), published(found)
    for which in found.scores:
        epoch = f"best ({best})" if which == "best" and best is not None else which
        who = ["ensemble", *(f"member\u00a0{m}" for m in range(found.members))] if found.members > 1 else ["network"]
        for place, predictor in enumerate(who):
            prefix = f"members.{place - 1}" if place else "ensemble"
            values = [show(name, found.score(f"{prefix}.{name}", which)) for name in names]
            rows.append(["" if place else epoch, predictor, *values])
        if paper and paper.score.which == which:
            known = {"top1": percent(paper.score.top1), "nllc": number(paper.score.nllc, 3)}
            rows.append(["", "the\u00a0paper", *(known.get(name, "") for name in names)])
    caption = ""
    if paper and paper.batch and found.recipe:
        ghost = f" in ghosts of {found.recipe.ghost}" if found.recipe.ghost else ""
        caption = f"The paper's batch size is {paper.batch}, this run's {found.recipe.batch_size}{ghost}."
    return Table(["epoch", "who", *(SCORES[name] for name in names)], rows, caption, words=2)


def _facts(found: Found) -> list[list[str]]:
    facts: dict[str, Any] = {}
    if found.recipe is not None:
        name, changes = method(found.recipe)
        facts["recipe"] = f"{name}, seed {found.recipe.seed}"
        facts["differs in"] = ", ".join(f"{key} {plain(value)}" for key, value in changes.items()) or "nothing"
        facts["network"] = f"{found.recipe.architecture}, {found.recipe.members} members, {found.recipe.precision}"
    environment = found.environment
    facts["device"] = environment.get("device_name")
    versions = [f"{key} {environment[key]}" for key in ("mixmo", "torch", "python", "cuda") if environment.get(key)]
    facts["versions"] = ", ".join(versions)
    facts["commit"] = environment.get("commit")
    facts["folder"] = str(found.path)
    return [[key, plain(value)] for key, value in facts.items() if value]


def _seconds(found: Found) -> float | None:
    stored = found.summary.get("seconds")
    curve = found.curves.get("seconds", [])
    return stored if isinstance(stored, int | float) else curve[-1] if curve else None


def _left(found: Found) -> str:
    """Training and evaluation that are left, at the pace so far."""
    done, seconds = found.curves["epoch"][-1], _seconds(found)
    if seconds is None or found.recipe is None:
        return ""
    spent = seconds + sum(value for value in found.curves.get("evaluation_seconds", []) if value == value)
    return f", about {duration(spent / done * (found.recipe.epochs - done))} of training left"


def _count(value: float) -> str:
    return f"{value / 1e6:.2f} M" if value >= 1e6 else f"{value:,.0f}"


def _operations(found: Found) -> str:
    operations = found.summary.get("multiply_adds")
    return f"{operations / 1e9:.4f} G multiply-adds" if isinstance(operations, int | float) else ""
