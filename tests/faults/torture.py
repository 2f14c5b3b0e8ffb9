"""SIGKILL at file events and at random moments: afterwards the same command ends as if nothing had happened.

`make torture COUNT=500 SEED=0` runs every scenario once undisturbed and then kills commands in COUNT trials: before a
file event (a file opened to write, synced, renamed or removed, a folder made or removed), or after a random time. The
same command (of a training: with --resume) follows; in a third of the trials it is killed too. At last it must end with
status 0, and its files must be those of the undisturbed command: the same names and bytes, up to measured times.

Each command runs in a forked process, which need not import PyTorch again.
"""

import argparse
import hashlib
import importlib
import itertools
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from small_world import ARCHIVE, COMMON, SMALL, WORLD, patch, prepare, site

from mixmo.cli import data, export, report, reproduce, train  # noqa: F401  no process imports them again
from mixmo.cli.app import main

CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"}  # audit events; open and fsync are others
# In JSON files: measured times, checksums of them, and the commit, which may be another after a kill.
VARYING = {"seconds", "evaluation_seconds", "logged", "commit"}

LIMIT = 600.0  # seconds after which a command hangs

TRAIN = [*SMALL, "--save_seconds", "0", "--out", "work/run", *COMMON]
IMAGES = [*TRAIN, "--dataset", "folder:images@8"]
SMOKE = ["reproduce", "best-ensembles", "--scale", "smoke", "--set", "epochs=1", "--set", "batch_size=64"]
TABLE = [*SMOKE, "--seeds", "3", "--save_seconds", "0.05", "--out", "work/table", *COMMON]


class Scenario(NamedTuple):
    """A command, run where it finds the files of `prepare` and writes below `work`."""

    command: list[str]
    again: tuple[str, ...] = ()  # options with which it is given again
    share: float = 1.0  # of the trials
    finished: bool = False  # it is about a finished run, work/run


SCENARIOS = {
    "train": Scenario(TRAIN, ("--resume",)),
    "train --networks 2": Scenario([*TRAIN, "--networks", "2"], ("--resume",)),
    "train --shard-mb": Scenario([*TRAIN, "--shard-mb", "0.1"], ("--resume",)),
    "train --average": Scenario([*TRAIN, "--average", "0.5"], ("--resume",)),
    "train --keep-every": Scenario([*TRAIN, "--keep-every", "1"], ("--resume",)),
    "train --teacher": Scenario([*TRAIN, "--teacher", "teacher"], ("--resume",)),
    "train, images cached": Scenario([*IMAGES, "--stream", "false"], ("--resume",)),
    "train --stream": Scenario([*IMAGES, "--stream", "true", "--workers", "0"], ("--resume",)),
    "train --stream, a worker": Scenario([*IMAGES, "--stream", "true", "--workers", "1"], ("--resume",), share=0.5),
    "data get": Scenario(["data", "get", "cifar10", "--to", "work"], share=0.5),
    "data corrupt": Scenario(["data", "corrupt", "cifar10", "--to", "work", "--severities", "1", "5"], share=0.5),
    "reproduce": Scenario(TABLE, share=0.3),
    "reproduce --jobs 2": Scenario([*TABLE, "--jobs", "2"], share=0.05),
    "reproduce --ray": Scenario([*TABLE, "--ray", "auto", "--gpus-per-run", "0"], share=0.05),
    "export": Scenario(["export", "work/run", "--to", "work/net.pt2"], ("--force",), share=0.15, finished=True),
    "report": Scenario(["report", "work/run"], share=0.05, finished=True),
}


def watch(folder: str, at: Collection[int], number: int = signal.SIGKILL) -> list[int]:
    """Count the file events below a folder from now on; send this process a signal before some of them."""
    numbers, seen = itertools.count(1), [0]

    def event() -> None:
        seen[0] = next(numbers)
        if seen[0] in at:
            os.kill(os.getpid(), number)

    def audit(name: str, arguments: tuple[Any, ...]) -> None:
        writes = name == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if (writes or name in CHANGES) and isinstance(arguments[0], str | os.PathLike):
            below = name in ("os.remove", "os.rmdir") and arguments[1] != -1  # by rmtree, named within its folder
            if below or os.path.abspath(arguments[0]).startswith(folder):
                event()

    def synced(file: int, fsync: Any = os.fsync) -> None:
        event()
        fsync(file)

    sys.addaudithook(audit)
    os.fsync = synced
    return seen


class Ended(NamedTuple):
    status: int  # negative: the signal that ended it
    said: str
    events: int
    modules: list[str]  # that it has imported
    seconds: float


def run(words: list[str], folder: Path, event: int | None = None, after: float | None = None) -> Ended:
    """Run a command in a folder; SIGKILL it before a file event or after some seconds."""
    began, log, tally = time.monotonic(), folder / "log", folder / "events"
    tally.unlink(missing_ok=True)
    process = os.fork()
    if process == 0:
        status = 70
        try:
            os.setpgid(0, 0)
            os.chdir(folder)
            for stream, file in ((0, os.open(os.devnull, os.O_RDONLY)), (1, os.open(log, 0o1101)), (2, 1)):
                os.dup2(file, stream)
            seen = watch(str(folder), {event} if event else ())
            status = main(words)
            sys.stdout.flush()
            tally.write_text("\n".join([str(seen[0]), *sys.modules]))
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(status)
    end = threading.Timer(LIMIT if after is None else after, os.kill, (process, signal.SIGKILL))
    end.start()
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    end.cancel()
    events, *modules = tally.read_text().split("\n") if tally.exists() else ["0"]
    return Ended(status, log.read_text(errors="replace"), int(events), modules, time.monotonic() - began)


def orphans_end(words: list[str], folder: Path, seconds: float = 60) -> None:
    """Wait for the processes that a killed `--jobs` or `--ray` has left: they save what they have and end."""
    until = time.monotonic() + seconds
    while {"--jobs", "--ray"} & {*words} and time.monotonic() < until and workers_in(folder):
        time.sleep(0.1)


def workers_in(folder: Path) -> list[str]:
    """The other processes that work in a folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if Path(os.readlink(process / "cwd")) == folder:
                found.append(process.name)
    return found


def content(folder: Path, training: bool) -> dict[str, Any]:
    """Everything below a folder by name, without what varies.

    Left out are lock files, which nobody holds any more, and the temporary files that a kill leaves outside of runs.
    """
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        left = path.name.endswith(".lock") or (path.suffix == ".tmp" and not training)
        if path.is_file() and not left:
            found[str(path.relative_to(folder))] = plain(path)
    return found


def plain(path: Path) -> Any:
    """The content of a file, without what varies; of a list of checksums the names, if the files agree with it."""
    if path.suffix in (".json", ".jsonl"):
        lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
        return [without_varying(json.loads(line)) for line in lines]
    if path.name == "SHA256SUMS":
        lines = [line.split("  ") for line in path.read_text().splitlines()]
        return [(name, digest(path.parent / name) == expected) for expected, name in lines]
    return digest(path)


def without_varying(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_varying(inner) for key, inner in value.items() if key not in VARYING}
    return value


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


class Undisturbed(NamedTuple):
    """What a scenario gives if nothing happens."""

    found: dict[str, Any]
    events: int
    seconds: float


def fresh(folder: Path, world: Path, scenario: Scenario) -> None:
    """Make the folder of a trial."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(world, folder)
    if not scenario.finished:
        (folder / "work").mkdir()
    else:
        shutil.copytree(world.with_name("finished"), folder / "work")


def undisturbed(name: str, scenario: Scenario, folder: Path, world: Path) -> Undisturbed:
    fresh(folder, world, scenario)
    ended = run(scenario.command, folder)
    if ended.status:
        sys.exit(f"{name} fails without any fault:\n{ended.said}")
    for module in ended.modules:  # here, so that the processes of the trials need not
        with suppress(Exception):
            importlib.import_module(module)
    found = content(folder / "work", scenario.command[0] == "train")
    fresh(folder, world, scenario)
    return Undisturbed(found, ended.events, run(scenario.command, folder).seconds)


def trial(
    scenario: Scenario, expected: Undisturbed, folder: Path, world: Path, chance: random.Random
) -> tuple[str, int]:
    """Kill a command once or twice, let it end, and compare; return what is wrong, and how often it was killed."""
    fresh(folder, world, scenario)
    words, kills, history = scenario.command, 0, ""
    for _ in range(2 if chance.random() < 1 / 3 else 1):
        by_event = expected.events > 0 and chance.random() < 0.75
        event = chance.randint(1, expected.events) if by_event else None
        after = None if by_event else chance.uniform(0, expected.seconds)
        ended = run(words, folder, event, after)
        kills += ended.status == -signal.SIGKILL
        history += f"killed at event {event}, after {after} s: status {ended.status}\n{ended.said}"
        words = [*scenario.command, *scenario.again]
        orphans_end(words, folder)
    if kills == 0:  # it ended before its time
        return trial(scenario, expected, folder, world, chance)
    ended = run(words, folder)
    found = content(folder / "work", scenario.command[0] == "train")
    complete = "exists already and is not overwritten" in ended.said  # all was done when it was killed
    if ended.status and not complete:
        return f"{history}\nthen status {ended.status}: {ended.said}", kills
    names = sorted(name for name in found.keys() | expected.found.keys() if found.get(name) != expected.found.get(name))
    return (f"{history}\nthen others: {', '.join(names)}" if names else ""), kills


def torture(count: int, seed: int, names: list[str], folder: Path) -> int:
    """Run `count` trials over the scenarios by their shares; print a line for each; return how many failed."""
    world, place, chance = folder / "world", folder / "trial", random.Random(seed)
    world.mkdir()
    prepare(world)
    os.environ[WORLD] = str(world)
    patch(world)
    torch.set_num_threads(1)
    failed = 0
    with site(world / ARCHIVE):
        if "train --teacher" in names:  # two networks
            fresh(place, world, SCENARIOS["train"])
            run([*TRAIN, "--networks", "2"], place)
            shutil.move(place / "work" / "run", world / "teacher")
        if any(SCENARIOS[name].finished for name in names):
            fresh(place, world, SCENARIOS["train"])
            run(TRAIN, place)
            shutil.move(place / "work", folder / "finished")
        whole = sum(SCENARIOS[name].share for name in names)
        print(f"{'scenario':26} events  kills  survived  seconds", flush=True)
        total_kills = total_trials = 0
        for name in names:
            scenario, began = SCENARIOS[name], time.monotonic()
            expected = undisturbed(name, scenario, place, world)
            trials, kills, good = max(1, round(count * scenario.share / whole)), 0, 0
            for number in range(trials):
                wrong, times = trial(scenario, expected, place, world, chance)
                kills += times
                good += not wrong
                if wrong:
                    kept = folder / f"failed-{name.replace(' ', '_')}-{number}"
                    shutil.copytree(place, kept)
                    print(f"{name}, trial {number}: {wrong}\nits files: {kept}", file=sys.stderr, flush=True)
            failed += trials - good
            total_kills, total_trials = total_kills + kills, total_trials + trials
            line = f"{expected.events:6} {kills:6} {good:5} of {trials} {time.monotonic() - began:6.0f}"
            print(f"{name:26} {line}", flush=True)
    print(f"{total_kills} kills in {total_trials} trials; {total_trials - failed} survived", flush=True)
    return failed


def options() -> argparse.Namespace:
    into = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    into.add_argument("--count", type=int, default=500, help="trials in all")
    into.add_argument("--seed", type=int, default=0)
    into.add_argument("--only", nargs="+", choices=SCENARIOS, default=list(SCENARIOS), help="scenarios")
    into.add_argument("--keep", type=Path, help="an empty folder for the files, which is kept")
    return into.parse_args()


if __name__ == "__main__":
    given = options()
    if given.keep:
        sys.exit(min(1, torture(given.count, given.seed, given.only, given.keep.resolve())))
    with tempfile.TemporaryDirectory(prefix="mixmo-torture-") as made:
        sys.exit(min(1, torture(given.count, given.seed, given.only, Path(made).resolve())))
elif WORLD in os.environ:  # a process that `--jobs` has spawned
    patch(Path(os.environ[WORLD]))
