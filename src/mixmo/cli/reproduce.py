"""mixmo reproduce NAME... | --list [--scale paper|hour|minutes|smoke] [--out DIR] [--dry-run] [--ray auto|ADDRESS]"""

import shlex
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from mixmo.cli.arguments import parse, parser
from mixmo.cli.parser import Parser
from mixmo.cli.plans import show_list, show_plan
from mixmo.data.catalog import data_directory
from mixmo.engine import Runtime
from mixmo.engine.preflight import check_precision
from mixmo.recipes.fields import above, at_least
from mixmo.recipes.schema import Recipe
from mixmo.reproduce import paper
from mixmo.reproduce.cluster import RayTasks, connect
from mixmo.reproduce.corruption import ORIGINAL, require_images
from mixmo.reproduce.cost import speed_of
from mixmo.reproduce.execute import Failures, run_by_workers, run_here, say
from mixmo.reproduce.output import write
from mixmo.reproduce.pages import fill_page, filled, read_page
from mixmo.reproduce.plan import Plan, expand, missing, needed
from mixmo.reproduce.processes import Processes
from mixmo.reproduce.queue import expand_queue, joined, read_queue
from mixmo.reproduce.report import Where, absent, fill
from mixmo.reproduce.scales import SCALES
from mixmo.reproduce.scores import source
from mixmo.reproduce.settings import check_settings, read_settings
from mixmo.reproduce.store import Store
from mixmo.reproduce.text import markdown
from mixmo.utils.errors import UserError

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
    into.add_argument(
        "--queue",
        type=Path,
        help="YAML file of parts of tables in the order to train, instead of names; --scale replaces its scales",
    )
    into.add_argument("--scale", type=Literal[tuple(SCALES)], help="how much of the protocol to run (default: paper)")
    into.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE", help="change the protocol; repeatable"
    )
    into.add_argument("--seeds", type=Annotated[int, at_least(1)], help="number of seeds (default: as published, or 1)")
    into.add_argument("--out", type=Path, default=Path("runs/reproduce"), help="folder of runs and tables")
    into.add_argument(
        "--runs", nargs="+", action="extend", type=Path, default=[], help="folders with more runs, such as results"
    )
    into.add_argument("--dry-run", action="store_true", help="print the plan, train nothing")
    into.add_argument("--report", action="store_true", help="make the tables from finished runs, train nothing")
    into.add_argument(
        "--pages",
        nargs="+",
        action="extend",
        type=Path,
        default=[],
        help="fill the marked tables of Markdown pages from --runs",
    )
    into.add_argument("--check", action="store_true", help="with --pages: raise an error if a table is out of date")
    into.add_argument(
        "--jobs", type=Annotated[int, at_least(1)], default=1, help="runs at a time that share this machine's GPU"
    )
    into.add_argument(
        "--minutes-left",
        type=Annotated[float, above(0)],
        help="save checkpoints and stop after this many minutes; the same command continues",
    )
    into.add_argument("--ray", type=str, metavar="auto|ADDRESS", help="train through Ray")
    shared = "with --ray (default: 1); below 1, runs share a GPU"
    into.add_argument("--gpus-per-run", type=Annotated[float, at_least(0)], help=shared)
    into.add_argument("--corrupted", type=Path, help="CIFAR-100-C (default: in the data folder)")
    into.add_fields(Runtime, "run", skip=FIXED)
    return into


def main(arguments: list[str]) -> None:
    parsed = parse(options(), arguments)
    if parsed.gpus_per_run is not None and parsed.ray is None:
        raise UserError(f"--gpus-per-run {parsed.gpus_per_run} needs --ray; add --ray auto, or leave it out")
    if parsed.ray is not None and (parsed.jobs > 1 or parsed.minutes_left is not None):
        raise UserError("--jobs and --minutes-left are for runs on this machine; leave out --ray")
    if parsed.pages:
        fill_pages(parsed.pages, parsed.runs, parsed.check)
        return
    settings, store = read_settings(parsed.set), Store(parsed.out, parsed.runs)
    for fault in store.unreadable.values():
        say(f"passed over: {fault}")
    plans = list_plans(parsed, settings)
    runtime = Runtime(**{f.name: getattr(parsed, f.name) for f in fields(Runtime) if f.name not in FIXED})
    if parsed.list:
        show_list(plans, store, speed_of(runtime.resolve()), settings)
        return
    empty = [plan for plan in plans if not plan.cells]
    if empty and "all" not in parsed.names:
        named = ", ".join(plan.table.name for plan in empty)
        raise UserError(f"{named} is empty at --scale {empty[0].scale}; use --scale paper")
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
    for plan in joined(plans):
        report = fill(plan, store, where)
        text = markdown(report, absent(plan, store), again(plan, parsed))
        print(text)
        print(f"written to {write(report, text, store, parsed.data)}\n")
    if failures:
        first = next(iter(failures.values()))
        raise UserError(f"{len(failures)} of {len(lacking)} runs failed and are missing above; the first: {first}")


def fill_pages(pages: list[Path], results: list[Path], check: bool) -> None:
    """Fill the tables of pages; with `check`, only raise a UserError if one is out of date."""
    if len(results) != 1 or not results[0].is_dir():
        raise UserError("--pages needs one folder of finished runs; give it by --runs results")
    for page in pages:
        if check and filled(read_page(page), results[0]) != read_page(page):
            raise UserError(f"the tables of {page} are out of date; the same command without --check fills them")
        if not check and fill_page(page, results[0]):
            print(f"filled {page}")


def list_plans(parsed: Namespace, settings: Mapping[str, Any]) -> list[Plan]:
    """The plans of the tables that were named, or of a queue."""
    if parsed.queue is not None:
        if parsed.names or settings or parsed.seeds:
            raise UserError(
                "--queue names the tables, their settings and seeds; give no names, --set or --seeds with it"
            )
        return expand_queue(read_queue(parsed.queue), parsed.scale)
    tables = [paper.load(name) for name in list_names(parsed.names, parsed.list)]
    plans = [expand(table, parsed.scale or "paper", settings, parsed.seeds) for table in tables]
    check_settings(settings, plans)
    return plans


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
    if parsed.ray is None:  # with Ray, the workers have other devices
        for recipe in recipes:
            check_precision(recipe, runtime.resolve())
    if parsed.ray is None and parsed.jobs == 1 and parsed.minutes_left is None:
        return run_here(recipes, store, runtime)
    quiet = replace(runtime, quiet=True, data=data_directory(runtime.data).resolve())
    if parsed.ray is None:
        return run_by_workers(recipes, store, Processes(quiet), parsed.jobs, parsed.minutes_left)
    gpus = 1.0 if parsed.gpus_per_run is None else parsed.gpus_per_run
    return run_by_workers(recipes, store, RayTasks(connect(parsed.ray, gpus), quiet, gpus))


def again(plan: Plan, parsed: Namespace) -> str:
    """The command that completes a table."""
    words = ["mixmo", "reproduce", *(["--queue", str(parsed.queue)] if parsed.queue else [plan.table.name])]
    words += ["--scale", plan.scale] if parsed.scale or not parsed.queue else []
    words += ["--out", str(parsed.out)]
    words += [word for setting in parsed.set for word in ("--set", setting)]
    words += ["--seeds", str(parsed.seeds)] if parsed.seeds else []
    words += ["--runs", *map(str, parsed.runs)] if parsed.runs else []
    words += ["--data", str(parsed.data)] if parsed.data else []
    words += ["--corrupted", str(parsed.corrupted)] if parsed.corrupted else []
    return shlex.join(words)
