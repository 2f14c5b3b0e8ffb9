"""Tables in Markdown pages, filled from a results folder.

A table stands between two lines; the first names its layout and the runs, as patterns of folders below the results:

<!-- table: runs cifar100-wrn28-4/* -->
<!-- end of table -->
"""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mixmo.data.corrupted import COMMON
from mixmo.recipes import Recipe, named
from mixmo.reproduce.cost import h200, run_seconds
from mixmo.reproduce.evidence import rows, spread
from mixmo.reproduce.plan import missing, needed
from mixmo.reproduce.queue import expand_queue, read_queue
from mixmo.reproduce.store import Store
from mixmo.storage.files import atomic_write
from mixmo.utils.errors import UserError, unknown

TABLE = re.compile(r"^(<!-- table: (\S+) (.*?) -->\n)(.*?)^(<!-- end of table -->)", re.DOTALL | re.MULTILINE)
Lines = list[list[str]]


def fill_page(page: Path, results: Path) -> bool:
    """Fill the tables of a page; return whether that changed it."""
    before = read_page(page)
    after = filled(before, results)
    if after != before:
        with atomic_write(page) as temporary:
            temporary.write_text(after, encoding="utf-8")
    return after != before


def read_page(page: Path) -> str:
    try:
        return page.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"--pages {page} cannot be read ({error.strerror}); give a Markdown file") from error


def filled(text: str, results: Path) -> str:
    """Return a page with its tables made from the results."""

    def table(match: re.Match[str]) -> str:
        start, layout, words, _, end = match.groups()
        if layout not in LAYOUTS:
            raise unknown("layout of a table", layout, LAYOUTS)
        header, *lines = LAYOUTS[layout](results, words.split())
        body = [header, ["---"] * len(header), *lines]
        return start + "".join(f"| {' | '.join(cells)} |\n" for cells in body) + end

    return TABLE.sub(table, text)


def runs_table(results: Path, words: Sequence[str]) -> Lines:
    """Everything that is scored; last epoch, in brackets the best one."""
    header = ["method", "b", "batch", "seeds", "Top1 %", "Top5 %", "NLL", "NLLc", "ECE", "members' Top1 %"]
    lines = [[*header, "ratio-error", "minutes", "folder"]]
    for row in rows(results, words):
        members = [one["last"]["members"] for one in row.scores]
        columns = zip(*[[member["top1"] for member in each] for each in members], strict=True)
        lines.append(
            [
                *(row.label, str(row.recipe.repetition), row.batch, str(len(row.scores))),
                f"{spread(row.values('last', 'top1'), 2, 100)} ({spread(row.values('best', 'top1'), 2, 100)})",
                spread(row.values("last", "top5"), 2, 100),
                spread(row.values("last", "nll"), 3),
                f"{spread(row.values('last', 'nllc'), 3)} ({spread(row.values('best', 'nllc'), 3)})",
                spread(row.values("last", "ece"), 3),
                ", ".join(spread(each, 2, 100) for each in columns) if len(members[0]) > 1 else "",
                spread(row.diversity("last"), 2),
                ", ".join(f"{minutes:.1f}" for minutes in row.minutes),
                ", ".join(f"`{run.path.relative_to(results)}`" for run in row.networks),
            ]
        )
    return lines


def paper_table(results: Path, words: Sequence[str]) -> Lines:
    """Scores of the best epoch beside the paper's; `width=10` takes those of the paper's network of that width."""
    width = next((int(word.partition("=")[2]) for word in words if word.startswith("width=")), None)
    beside = "the paper" if width is None else f"the paper, width {width}"
    lines = [["method", "b", "batch", "seeds", "Top1 %", beside, "NLLc", beside, "ECE", "minutes"]]
    for row in rows(results, [word for word in words if not word.startswith("width=")]):
        figures = {score: row.printed(score, width) for score in ("top1", "nllc")}
        published = {
            score: "" if figure is None else spread([figure.value], digits, factor)
            for (score, figure), digits, factor in zip(figures.items(), (2, 3), (100, 1), strict=True)
        }
        lines.append(
            [
                *(row.label, str(row.recipe.repetition), row.batch, str(len(row.scores))),
                *(spread(row.values("best", "top1"), 2, 100), published["top1"]),
                *(spread(row.values("best", "nllc"), 3), published["nllc"]),
                spread(row.values("best", "ece"), 3),
                ", ".join(f"{minutes:.0f}" for minutes in row.minutes),
            ]
        )
    return lines


def short_table(results: Path, words: Sequence[str]) -> Lines:
    """Scores of the last epoch, and costs relative to the first row."""
    found = rows(results, words)
    lines = [["", "seeds", "Top1 %", "NLL", "ECE", "cost of a prediction", "cost of training"]]
    for row in found:
        prediction, training = row.relative_costs(found[0])
        scores = [spread(row.values("last", name), digits, factor) for name, digits, factor in SHORT]
        repeated = f", b = {row.recipe.repetition}" if row.recipe.repetition > 1 else ""
        lines.append([row.label + repeated, str(len(row.scores)), *scores, f"{prediction:.5g} x", f"{training:.3g} x"])
    return lines


SHORT = (("top1", 2, 100), ("nll", 3, 1), ("ece", 3, 1))


def ensembles_table(results: Path, words: Sequence[str]) -> Lines:
    """Scores of ensembles: last epoch, and the best one where it is kept."""
    lines = [["networks", "epoch", "Top1 %", "Top5 %", "NLL", "NLLc", "ECE", "ratio-error", "the paper", "folders"]]
    for row in rows(results, words):
        for which in ("last", "best"):
            if not row.values(which, "top1"):
                continue
            top1, nllc = (row.printed(score) if which == "best" else None for score in ("top1", "nllc"))
            printed = f"{100 * top1.value:.2f}, {nllc.value:.3f}" if top1 and nllc else ""
            scores = [spread(row.values(which, name), *shown) for name, shown in ENSEMBLE.items()]
            folders = ", ".join(f"`{run.path.name}`" for run in row.networks)
            lines.append([row.label, which, *scores, spread(row.diversity(which), 2), printed, folders])
    return lines


ENSEMBLE = {"top1": (2, 100), "top5": (2, 100), "nll": (3, 1), "nllc": (3, 1), "ece": (3, 1)}


def queue_table(results: Path, words: Sequence[str]) -> Lines:
    """What a queue lacks, in its order, with the minutes of one H200; a run of two entries counts in the first."""
    store, entries = Store(results / "none", [results]), read_queue(results / words[0])
    lines = [["table", "rows", "scale", "runs", "done", "minutes left"]]
    seen, total = set[Any](), 0.0
    for entry, plan in zip(entries, expand_queue(entries), strict=True):
        runs = needed([plan], store)
        lacking = [recipe for recipe in missing(runs, store) if recipe not in seen]
        seconds = sum(run_seconds(recipe, h200()) for recipe in lacking)
        own = [recipe for recipe in runs if recipe not in seen]
        seen, total = seen | set(runs), total + seconds
        named = ", ".join([*([entry.group] if entry.group else []), *entry.rows]) or "all"
        counts = [str(len(own)), str(len(own) - len(lacking)), f"{seconds / 60:.0f}"]
        lines.append([f"`{entry.table}`", named, entry.scale, *counts])
    lines.append(["all", "", "", str(len(seen)), "", f"{total / 60:.0f}"])
    return lines


def beyond_table(results: Path, words: Sequence[str]) -> Lines:
    """What `benchmarks/beyond.py` measured: corruptions pooled, and AUROC and FPR95 of OOD detection by entropy."""
    header = ["network", "images per cell", "Top1 %", "Top5 %", "NLL", "error of the usual 15, %"]
    lines = [[*header, "images", "CIFAR-10", "Tiny ImageNet", "noise"]]
    for path in sorted(path for word in words for path in results.glob(word)):
        found = json.loads(path.read_text(encoding="utf-8"))
        cells = [cell for name, each in found.items() if name.startswith("corrupted ") for cell in each.values()]
        usual = [cell["top1"] for name in COMMON for cell in found[f"corrupted {name}"].values()]
        pooled = {name: sum(cell[name] for cell in cells) / len(cells) for name in ("top1", "top5", "nll")}
        ood = [found.get(f"ood {name}", {}).get("entropy") for name in ("cifar10", "tiny-imagenet", "noise")]
        lines.append(
            [
                *(f"`{path.stem}`", str(found["corrupted"] or "all")),
                *(f"{100 * pooled['top1']:.1f}", f"{100 * pooled['top5']:.1f}", f"{pooled['nll']:.2f}"),
                f"{100 - 100 * sum(usual) / len(usual):.1f}",
                str(found["images"] or "all"),
                *[f"{100 * each['auroc']:.1f}, {100 * each['fpr95']:.1f}" if each else "" for each in ood],
            ]
        )
    return lines


def transfer_table(results: Path, words: Sequence[str]) -> Lines:
    """What `benchmarks/transfer_table.py` made, of one network and pretraining: NETWORK SOURCE."""
    file, network, source = words
    lines = [["fine-tuning", "options of `mixmo train`", "seeds", "images seen", "Top1 %", "NLLc", "ECE"]]
    found = json.loads((results / file).read_text(encoding="utf-8"))
    runs = [
        run for run in found if (run["network"], run["source"]) == (network, source) and run["row"] != "pretraining"
    ]
    for row in dict.fromkeys(run["row"] for run in runs):
        seeds = [run for run in runs if run["row"] == row]
        recipe = seeds[0]["recipe"]
        plain = recipe.get("members") == 1
        changed = {name: value for name, value in recipe.items() if name in (IDEAS[:3] if plain else IDEAS)}
        changed |= {} if recipe["lr"] == runs[0]["recipe"]["lr"] else {"lr": recipe["lr"]}
        options = [
            f"--{name.replace('_', '-')} {'RUN' if name == 'teacher' else value}" for name, value in changed.items()
        ]
        images = seeds[0]["images"] * recipe["epochs"] * recipe.get("repetition", 2) * recipe.get("networks", 1)
        ensembles = [run["scores"]["last"]["ensemble"] for run in seeds]
        scores = [spread([each[name] for each in ensembles], *shown) for name, shown in TRANSFER.items()]
        lines.append(
            [row, f"`{' '.join(options)}`" if options else "", str(len(seeds)), f"{images / 1e6:.2g} M", *scores]
        )
    return lines


IDEAS = ("average", "teacher", "networks", "unmix", "curriculum", "rho", "diversity", "p", "head_lr", "pixel")
TRANSFER = {"top1": (1, 100), "nllc": (3, 1), "ece": (3, 1)}


def finetune_table(results: Path, words: Sequence[str]) -> Lines:
    """What `benchmarks/finetune.py` made: scores of the last epoch, on held-out images and in the test.

    The second word is the data set.
    """
    file, dataset = words
    header = ["recipe", "options", "seeds", "images seen", "held-out Top1 %", "held-out NLLc"]
    lines = [[*header, "Top1 %", "NLLc", "ECE"]]
    rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for run in json.loads((results / file).read_text(encoding="utf-8")):
        if run["recipe"]["dataset"] != dataset:
            continue
        usual = named(f"finetune/{run['method']}")
        changed = {
            name: run["recipe"].get(name, getattr(Recipe(), name))
            for name in TUNED
            if run["recipe"].get(name, getattr(Recipe(), name)) != getattr(usual, name)
        }
        options = " ".join(f"--{name.replace('_', '-')} {value:g}" for name, value in changed.items())
        rows.setdefault((run["method"], options), []).append(run)
    for (method, options), runs in rows.items():
        recipe = runs[0]["recipe"]
        seen = 0.9 * runs[0]["images"] * recipe["epochs"] * recipe.get("repetition", 2)
        held_out = [list(run["curve"].values())[-1]["validation"] for run in runs]
        test = [run["scores"]["last"]["ensemble"] for run in runs]
        lines.append(
            [
                *(f"`finetune/{method}`", f"`{options}`" if options else "", str(len(runs)), f"{seen / 1e3:.0f} k"),
                *(spread([each[name] for each in held_out], *TRANSFER[name]) for name in ("top1", "nllc")),
                *(spread([each[name] for each in test], *shown) for name, shown in TRANSFER.items()),
            ]
        )
    return lines


TUNED = ("epochs", "lr", "head_lr", "rho", "average")


LAYOUTS: dict[str, Callable[[Path, Sequence[str]], Lines]] = {
    "runs": runs_table,
    "paper": paper_table,
    "short": short_table,
    "ensembles": ensembles_table,
    "queue": queue_table,
    "beyond": beyond_table,
    "transfer": transfer_table,
    "finetune": finetune_table,
}
