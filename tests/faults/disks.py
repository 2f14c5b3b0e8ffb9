"""A disk that is full, read-only, gone, slow, or without inodes or quota from one moment of a training to another.

`python tests/faults/disks.py --count 10` (as root, on Linux: file systems are mounted) gives each fault so many
trials. A fault begins before a random file event; in half of the trials it is over before a later one. The training
must end with the files of an undisturbed one, or with one sentence; then it is resumed without the fault, from the
last checkpoint or a later one, and must end so.
"""

import argparse
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from small_world import COMMON, SMALL, patch, prepare
from torture import content, watch

from mixmo.cli.app import main

COMMAND = [*SMALL, "--save_seconds", "0", "--out", "disk/run", *COMMON]


def mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True, capture_output=True)


def unmount(place: Path) -> None:
    subprocess.run(["umount", "--lazy", str(place)], check=True, capture_output=True)


def fill(disk: Path, process: int) -> None:
    with suppress(OSError), (disk / "filler").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 12))


def empty(disk: Path, process: int) -> None:
    (disk / "filler").unlink(missing_ok=True)


def take_inodes(disk: Path, process: int) -> None:
    (disk / "files").mkdir(exist_ok=True)
    with suppress(OSError):
        for number in range(10_000):
            (disk / "files" / str(number)).touch()


def give_inodes(disk: Path, process: int) -> None:
    shutil.rmtree(disk / "files", ignore_errors=True)


def read_only(disk: Path, process: int) -> None:
    mount("--bind", str(disk), str(disk))
    mount("-o", "remount,bind,ro", str(disk))


def writable(disk: Path, process: int) -> None:
    unmount(disk)


def vanish(disk: Path, process: int) -> None:
    (disk / "run").rename(disk / "gone")


def come_back(disk: Path, process: int) -> None:
    (disk / "gone").rename(disk / "run")


def limit(disk: Path, process: int) -> None:
    resource.prlimit(process, resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))


def lift(disk: Path, process: int) -> None:
    with suppress(ProcessLookupError):
        resource.prlimit(process, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def nothing(disk: Path, process: int) -> None:
    """A slow disk is slow from the start."""


class Fault(NamedTuple):
    begin: Callable[[Path, int], None]
    end: Callable[[Path, int], None]
    slow: float = 0.0  # seconds that a sync takes


FAULTS = {
    "full": Fault(fill, empty),
    "out of inodes": Fault(take_inodes, give_inodes),
    "read-only": Fault(read_only, writable),
    "vanished": Fault(vanish, come_back),
    "quota": Fault(limit, lift),
    "slow": Fault(nothing, nothing, slow=0.2),
}


class Ended(NamedTuple):
    status: int
    said: str
    events: int
    checkpoint: int  # step of the last one when the fault began


def run(folder: Path, fault: Fault | None, begin: int = 0, end: int = 0, resume: bool = False) -> Ended:
    """Train below FOLDER/disk; the fault begins before file event `begin`, and is over before event `end`."""
    disk, log, tally = folder / "disk", folder / "log", folder / "events"
    tally.unlink(missing_ok=True)
    log.unlink(missing_ok=True)
    process = os.fork()
    if process == 0:
        status = 70
        try:
            os.chdir(folder)
            for stream in (1, 2):
                os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
            seen = watch(str(disk), {begin, end}, signal.SIGSTOP)
            if fault is not None and fault.slow:
                sync_slowly(fault.slow)
            status = main([*COMMAND, *(["--resume"] if resume else [])])
            sys.stdout.flush()
            tally.write_text(str(seen[0]))
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    under_way, checkpoint = False, 0
    while True:
        _, found = os.waitpid(process, os.WUNTRACED)
        if not os.WIFSTOPPED(found):
            break
        assert fault is not None
        checkpoint = checkpoint if under_way else last_checkpoint(disk)
        (fault.end if under_way else fault.begin)(disk, process)
        under_way = not under_way
        os.kill(process, signal.SIGCONT)
    if under_way and fault is not None:
        fault.end(disk, process)
    events = int(tally.read_text()) if tally.exists() else 0
    return Ended(os.waitstatus_to_exitcode(found), log.read_text(errors="replace"), events, checkpoint)


def sync_slowly(seconds: float) -> None:
    fsync = os.fsync

    def slow(file: int) -> None:
        time.sleep(seconds)
        fsync(file)

    os.fsync = slow


def last_checkpoint(disk: Path) -> int:
    states = (disk / "run" / "checkpoints").glob("[0-9]*/state.json")
    return max((int(state.parent.name) for state in states), default=0)


def trial(fault: Fault, events: int, expected: dict[str, Any], folder: Path, chance: random.Random) -> tuple[bool, str]:
    """Inject a fault; return whether the training went on to its end, and what is wrong."""
    disk = folder / "disk"
    begin = chance.randint(1, events)
    end = begin + chance.randint(1, 40) if chance.random() < 0.5 else 0
    disk.mkdir(exist_ok=True)
    mount("-t", "tmpfs", "-o", "size=16m,nr_inodes=200", "none", str(disk))
    try:
        first = last = run(folder, fault, begin, end)
        lines = [line for line in first.said.splitlines() if line.startswith("mixmo: ")]
        warned = sum("training goes on" in line for line in lines)
        plain = warned <= 1 and len(lines) - warned == (first.status != 0) and "Traceback" not in first.said
        kept = last_checkpoint(disk) >= first.checkpoint
        if first.status:
            last = run(folder, None, resume=True)
        found = content(disk / "run", training=True)
    finally:
        unmount(disk)
    others = sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))
    story = (
        f"from event {begin} to {end or 'the end'}: {first}, then {last}; plain {plain}, kept {kept}, others {others}"
    )
    return first.status == 0, "" if plain and kept and not (last.status or others) else story


def main_() -> int:
    into = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    into.add_argument("--count", type=int, default=10, help="trials of each fault")
    into.add_argument("--seed", type=int, default=0)
    into.add_argument("--only", nargs="+", choices=FAULTS, default=list(FAULTS), help="faults")
    given = into.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="mixmo-disks-") as made:
        folder, failed = Path(made).resolve(), 0
        prepare(folder)
        patch(folder)
        (folder / "disk").mkdir()
        undisturbed = run(folder, None)
        expected = content(folder / "disk" / "run", training=True)
        shutil.rmtree(folder / "disk")
        print(f"{'fault':14} survived  went on by itself", flush=True)
        for name in given.only:
            chance = random.Random(f"{name} {given.seed}")
            trials = [trial(FAULTS[name], undisturbed.events, expected, folder, chance) for _ in range(given.count)]
            wrong = [story for _, story in trials if story]
            print(f"{name:14} {given.count - len(wrong):2} of {given.count:2} {sum(ended for ended, _ in trials):9}")
            print("\n".join(wrong), end="", file=sys.stderr, flush=True)
            failed += len(wrong)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main_())
