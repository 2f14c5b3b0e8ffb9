"""Every measurement that needs a GPU, one after the other, as far as the minutes go.

    PYTHONPATH=src python benchmarks/everything.py --data DATA --out OUT --minutes-left 28 [JOB ...]

Short jobs come first: those that compare numbers, then those that measure speed and need the GPU to themselves, then
trainings for whatever time is left. What a job prints goes to OUT/JOB.txt; a job that is done is not repeated, so that
the same command continues on another day or machine with the same OUT. `--list` prints the jobs. The minutes are those
of an H200.
"""

import argparse
import os
import runpy
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
GRACE = 1.0  # minutes that trainings get to write their checkpoints, at the end
SHARDS = 6  # processes of the golden losses
WRN = "wrn28-10:256 wrn28-10:256:auto wrn28-10:256:fp8 wrn28-10:64 wrn28-10:64:auto wrn28-10:64:fp8"
TRANSFER = (  # what the table lacks, the most promising first
    "half repeated, averaged weights, two teachers",
    "half repeated, averaged weights, teacher",
    "half repeated, averaged weights",
    "half repeated",
    "plain, averaged weights",
    "plain, 200 epochs, two teachers",
    "plain",
)
BENCH = "-m mixmo bench cifar100/cut-mixmo --batch-size 256"


class Job(NamedTuple):
    """Python commands that run at the same time, and the minutes they take; None: as many as there are."""

    commands: tuple[str, ...]
    minutes: float | None = None


def jobs() -> dict[str, Job]:
    names = list(runpy.run_path(str(ROOT / "tests/golden/test_golden.py"))["RECIPES"])
    golden = [f"tests/golden/test_golden.py --device cuda {shlex.join(names[i::SHARDS])}" for i in range(SHARDS)]
    trainings = "--data {data} --minutes-left {minutes} --jobs"
    transfer = f"benchmarks/transfer_table.py --known results/transfer.json {trainings} 6 --rows {shlex.join(TRANSFER)}"
    return {
        "golden": Job(tuple(golden), 2),
        "convolutions-check": Job(("benchmarks/convolutions.py --check --seconds 60",), 2),
        "serve": Job(("benchmarks/serve.py --seconds 8",), 1),
        "convolutions": Job(("benchmarks/convolutions.py --tiles",), 2),
        "wrn": Job((f"benchmarks/steps.py {WRN} wrn28-4:512 wrn28-4:512:fp8 --seconds 2",), 5),
        "timm": Job(("benchmarks/steps.py resnet50 convnext_tiny vit_small_patch16_224",), 3),
        "bench-bf16": Job((f"{BENCH} --precision bf16 --kernels auto",), 2),
        "bench-fp8": Job((f"{BENCH} --precision fp8",), 2),
        "transfer-wrn": Job((f"{transfer} --out {{out}}/transfer --sources cifar100 --networks wrn28-4",)),
        "transfer": Job((f"{transfer} --out {{out}}/transfer --networks vit12-3 wrn28-4",)),
        "queue": Job((f"-m mixmo reproduce --queue results/queue.yaml --out {{out}}/queue {trainings} 3",)),
    }


def run_all(commands: Sequence[str], log: Path, minutes: float) -> bool:
    """Run the commands at the same time; return whether all succeeded."""

    def run(command: str) -> bool:
        with log.open("a") as file:
            try:
                return not subprocess.run(
                    [sys.executable, *shlex.split(command)],
                    cwd=ROOT,
                    env={**os.environ, "PYTHONUNBUFFERED": "1"},
                    stdout=file,
                    stderr=file,
                    timeout=60 * minutes,
                ).returncode
            except subprocess.TimeoutExpired:
                print(f"stopped after {minutes:.1f} minutes: {command}", file=file)
                return False

    log.unlink(missing_ok=True)
    with ThreadPoolExecutor(len(commands)) as pool:
        return all(list(pool.map(run, commands)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="*", metavar="JOB")
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder of the data sets")
    parser.add_argument("--out", type=Path, default=Path("runs/everything"))
    parser.add_argument("--minutes-left", type=float, default=float("inf"))
    parser.add_argument("--list", action="store_true", help="print the jobs and their commands")
    given = parser.parse_args()
    known = jobs()
    if unknown := set(given.jobs) - set(known):
        parser.error(f"unknown job: {', '.join(sorted(unknown))}; the jobs are {', '.join(known)}")
    if given.list:
        for name, job in known.items():
            print(name, *job.commands, sep="\n    ")
        return
    data, out = given.data.resolve(), given.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + 60 * given.minutes_left
    for name in given.jobs or known:
        job, log = known[name], out / f"{name}.txt"
        left = (deadline - time.monotonic()) / 60 - GRACE
        if log.is_file():
            print(f"{name}: done before", flush=True)
            continue
        if left < (job.minutes or 1):
            print(f"{name}: no time left", flush=True)
            continue
        commands = [command.format(data=data, out=out, minutes=round(left, 1)) for command in job.commands]
        began, part = time.monotonic(), log.with_suffix(".part")
        good = run_all(commands, part, left + GRACE if job.minutes is None else min(left, 2 * job.minutes))
        if good and job.minutes is not None:
            part.rename(log)
        print(f"{name}: {'done' if good else 'failed'}, {(time.monotonic() - began) / 60:.1f} minutes", flush=True)


if __name__ == "__main__":
    main()
