"""mixmo reproduce NAME... | --list [--scale paper|hour|minutes|smoke] [--out DIR] [--dry-run] [--ray auto|ADDRESS]"""

import shlex
from argparse import Namespace
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from mixmo.cli.arguments import parse, parser
from mixmo.cli.console import Output, grid
from mixmo.cli.parser import Parser
from mixmo.data.catalog import data_directory
from mixmo.engine import Runtime
from mixmo.recipes.fields import above, at_least
from mixmo.recipes.schema import Recipe
from mixmo.reproduce import paper
from mixmo.reproduce.cluster import RayTasks, connect
from mixmo.reproduce.corruption import ORIGINAL, require_images
from mixmo.reproduce.cost import Speed, h200, run_seconds, speed_of
from mixmo.reproduce.execute import Failures, epochs_logged, run_by_workers, run_here, say
from mixmo.reproduce.output import write
from mixmo.reproduce.plan import Plan, expand, missing, needed, trained
from mixmo.reproduce.processes import Processes
from mixmo.reproduce.report import Where, absent, fill
from mixmo.reproduce.scales import SCALES
from mixmo.reproduce.scores import source
from mixmo.reproduce.settings import check_settings, read_settings, settings_for
from mixmo.reproduce.store import Store, run_name
from mixmo.reproduce.text import markdown, title
from mixmo.utils.errors import UserError
from mixmo.utils.progress import clock

ABOUT = "from the rates in benchmarks/RESULTS.md, with scoring and compilation."
FIXED = {"minutes", "score_every"}  # of Runtime: they change what a run gives, and runs are shared


def options() -> Parser:
    scales = "; ".join(f"{name}: {scale.summary}" for name, scale in SCALES.items())
    into = parser(
        "reproduce",
        "Make tables and figures of the paper again: train what is missing, show ours, the paper's and the difference. "
        f"Ctrl-C stops after saving; the same command continues. Scales: {scales}.",
    )
    into.add_argument("names", nargs="*", help="tables and figures (`mixmo reproduce --list`), or all")
    into.add_argument("--list", action="store_true", help="all of them: runs needed, done, and time left")
    into.add_argument("--scale", type=Literal[tuple(SCALES)], default="paper", help="how much of the protocol is run")
    into.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE", help="change the protocol; repeatable"
    )
    into.add_argument(
        "--seeds", type=Annotated[int | None, at_least(1)], default=None, help="how many; by default as published, or 1"
    )
    into.add_argument("--out", type=Path, default=Path("runs/reproduce"), help="folder of runs and tables")
    into.add_argument(
        "--runs", nargs="+", action="extend", type=Path, default=[], help="folders with more runs, such as results"
    )
    into.add_argument("--dry-run", action="store_true", help="print the plan, train nothing")
    into.add_argument("--report", action="store_true", help="make the tables from what is there, train nothing")
    into.add_argument(
        "--jobs", type=Annotated[int, at_least(1)], default=1, help="runs at a time that share this machine's GPU"
    )
    into.add_argument(
        "--minutes-left",
        type=Annotated[float | None, above(0)],
        default=None,
        help="stop after so many minutes, every run with a checkpoint; the same command continues",
    )
    into.add_argument("--ray", type=str | None, default=None, metavar="auto|ADDRESS", help="train through Ray")
    shared = "with --ray, 1 unless given; below 1, runs share a GPU"
    into.add_argument("--gpus-per-run", type=Annotated[float | None, at_least(0)], default=None, help=shared)
    into.add_argument(
        "--cpus-per-run", type=Annotated[float | None, at_least(0)], default=None, help="with --ray, 1 unless given"
    )
    into.add_argument("--corrupted", type=Path | None, default=None, help="CIFAR-100-C; by default in the data folder")
    into.add_fields(Runtime, "run", skip=FIXED)
    return into


def main(arguments: list[str]) -> None:
    parsed = parse(options(), arguments)
    for option, value in (("--gpus-per-run", parsed.gpus_per_run), ("--cpus-per-run", parsed.cpus_per_run)):
        if value is not None and parsed.ray is None:
            raise UserError(f"{option} {value} is for runs that Ray shares out; give --ray auto too, or leave it out")
    if parsed.ray is not None and (parsed.jobs > 1 or parsed.minutes_left is not None):
        raise UserError("--jobs and --minutes-left are for runs on this machine; leave out --ray")
    settings, store = read_settings(parsed.set), Store(parsed.out, parsed.runs)
    names = list_names(parsed.names, parsed.list)
    for fault in store.unreadable.values():
        say(f"passed over: {fault}")
    plans = [expand(paper.load(name), parsed.scale, settings, parsed.seeds) for name in names]
    check_settings(settings, plans)
    runtime = Runtime(**{f.name: getattr(parsed, f.name) for f in fields(Runtime) if f.name not in FIXED})
    if parsed.list:
        show_list(plans, store, speed_of(runtime.resolve()), settings)
        return
    empty = [plan.table.name for plan in plans if not plan.cells]
    if empty and "all" not in parsed.names:
        raise UserError(f"{', '.join(empty)} has nothing at --scale {parsed.scale}; take --scale paper")
    plans = [plan for plan in plans if plan.cells]
    lacking = missing(needed(plans, store), store)
    if parsed.dry_run:
        show_plan(plans, lacking, store, speed_of(runtime.resolve()))
        return
    failures: Failures = {}
    where = Where(parsed.corrupted or data_directory(parsed.data) / ORIGINAL, runtime.resolve())
    if lacking and not parsed.report:
        check_corrupted(plans, where, given=parsed.corrupted is not None)
        failures = train_all(lacking, store, runtime, parsed)
    for plan in plans:
        report = fill(plan, store, where)
        text = markdown(report, absent(plan, store), again(plan, parsed))
        print(text)
        print(f"written to {write(report, text, store, parsed.data)}\n")
    if failures:
        first = next(iter(failures.values()))
        raise UserError(f"{len(failures)} of {len(lacking)} runs failed and are missing above; the first: {first}")


def list_names(given: list[str], everything: bool) -> list[str]:
    if not given and not everything:
        raise UserError("say which table or figure, or all; `mixmo reproduce --list` shows them")
    if not given or "all" in given:
        return paper.names()
    return [paper.load(name).name for name in dict.fromkeys(given)]


def check_corrupted(plans: list[Plan], where: Where, given: bool) -> None:
    """Say before hours of training that nothing is there to score on after them; a folder that was named must be."""
    cells = [cell for plan in plans for cell in plan.cells.values() if source(cell.score) == "corrupted"]
    if all(cell.groups[0][0].dataset == "digits" for cell in cells):
        return
    try:
        require_images(where.corrupted)
    except UserError as error:
        if given:
            raise
        say(f"cells on corrupted images will be empty, and filled by the same command later: {error}")


def train_all(recipes: list[Recipe], store: Store, runtime: Runtime, parsed: Namespace) -> Failures:
    if parsed.ray is None and parsed.jobs == 1 and parsed.minutes_left is None:
        return run_here(recipes, store, runtime)
    quiet = replace(runtime, quiet=True, data=data_directory(runtime.data).resolve())
    if parsed.ray is None:
        return run_by_workers(recipes, store, Processes(quiet), parsed.jobs, parsed.minutes_left)
    gpus, cpus = (1.0 if given is None else given for given in (parsed.gpus_per_run, parsed.cpus_per_run))
    return run_by_workers(recipes, store, RayTasks(connect(parsed.ray, gpus), quiet, gpus, cpus))


def again(plan: Plan, parsed: Namespace) -> str:
    """The command that completes a table."""
    words = ["mixmo", "reproduce", plan.table.name, "--scale", parsed.scale, "--out", str(parsed.out)]
    words += [word for setting in parsed.set for word in ("--set", setting)]
    words += ["--seeds", str(parsed.seeds)] if parsed.seeds else []
    words += ["--runs", *map(str, parsed.runs)] if parsed.runs else []
    words += ["--data", str(parsed.data)] if parsed.data else []
    words += ["--corrupted", str(parsed.corrupted)] if parsed.corrupted else []
    return shlex.join(words)


def show_list(plans: list[Plan], store: Store, here: Speed, settings: Mapping[str, Any]) -> None:
    """One row per table: runs needed and done, time on an H200 in all and left, time left on this device."""
    console = Output(80)
    wide = console.width >= 120
    numbers = ("done", "scored", "H200", "left", *(["left here"] if here.measured else []))
    table = grid("name", "paper", *numbers, words=2)
    table.columns[0].no_wrap = True
    if wide:
        table.add_column("title")
    for plan in plans:
        beyond = "" if plan.cells else " (not at this scale)"
        titled = [f"{plan.table.title}{beyond}"] if wide else []
        table.add_row(plan.table.name, plan.table.source, *amounts([plan], store, here), *titled)
    table.add_section()
    table.add_row("all", "", *amounts(plans, store, here), *(["with runs shared"] if wide else []))
    first = next((plan for plan in plans if trained(plan.table)), plans[0])
    changed = "".join(f"; {name} = {value}" for name, value in settings.items())
    console.print(f"scale {first.scale}: {SCALES[first.scale].summary}{changed}", style="bold")
    console.print(table)
    console.print("done: runs there, of those needed. scored: kept without the logits or weights that some cells need.")
    console.print(f"H200: {ABOUT}" + (f" Here: one {here.name}, by a few steps measured now." if here.measured else ""))
    for line in unused(plans, store):
        console.print(f"not counted: {line}")


def amounts(plans: list[Plan], store: Store, here: Speed) -> list[str]:
    """Runs, those done or scored, time of an H200 in all and left; time left on this device if it is another."""
    runs = needed(plans, store)
    lacking = missing(runs, store)
    scored = sum(store.find(recipe) is not None for recipe in lacking)
    speeds = [h200(), *([here] if here.measured else [])]
    spans = [sum(run_seconds(recipe, h200()) for recipe in runs), *[left(lacking, store, speed) for speed in speeds]]
    return [f"{len(runs) - len(lacking)}/{len(runs)}", str(scored), *map(duration, spans)]


def duration(seconds: float) -> str:
    """A span of time with its unit.

    >>> duration(0), duration(90), duration(5000), duration(1e6), duration(1e8)
    ('-', '1.5 min', '1.4 h', '11.6 days', '3.2 years')
    """
    for unit, length in (("years", 365 * 86400), ("days", 86400), ("h", 3600)):
        if seconds >= (length if unit != "days" else 2 * length):
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds / 60:.1f} min" if seconds else "-"


def unused(plans: list[Plan], store: Store) -> list[str]:
    """Finished runs that serve no table as it is planned, and the settings with which they would."""
    runs = needed(plans, store)
    hints = Counter(settings_for(recipe, runs) for recipe in store.finished() if recipe not in runs)
    named = {hint: f"of another protocol (with {hint} counted)" if hint else "that no table here has" for hint in hints}
    return [f"{count} run{'s' if count > 1 else ''} {named[hint]}" for hint, count in sorted(hints.items())]


def left(recipes: Iterable[Recipe], store: Store, speed: Speed) -> float:
    """Seconds for what runs still lack: all of them, or the epochs after those that one to resume has logged."""
    done = {recipe: epochs_logged(store.folder(recipe)) if store.begun(recipe) else 0 for recipe in recipes}
    return sum(run_seconds(recipe, speed) * (1 - epochs / recipe.epochs) for recipe, epochs in done.items())


def show_plan(plans: list[Plan], lacking: list[Recipe], store: Store, speed: Speed) -> None:
    """The runs that would be trained, in order."""
    for plan in plans:
        print(title(plan))
    runs = needed(plans, store)
    print(
        f"{len(runs)} runs needed, {len(runs) - len(lacking)} there, {len(lacking)} to train into {store.out / 'runs'}"
    )
    for recipe in lacking:
        state = "resume" if store.begun(recipe) else "train"
        print(f"  {state:6} {run_name(recipe)}  {clock(left([recipe], store, speed))}")
    source = "by a few steps measured now" if speed.measured else ABOUT
    print(f"{clock(left(lacking, store, speed))} of one {speed.name}, one run after the other: {source}")
