"""Every measurement that needs a GPU, one after the other, as far as the minutes go.

    PYTHONPATH=src python benchmarks/everything.py --data DATA --out OUT --minutes-left 28 [JOB ...]

Short jobs come first: those that compare numbers, then those that measure speed and need the GPU to themselves, then
trainings for whatever time is left. What a job prints goes to OUT/JOB.txt; a job that is done is not repeated, so that
the same command continues on another day or machine with the same OUT. A job that fails does not stop the others; the
end of its output is printed. OUT/results.tar.gz holds all outputs, scores and recipes so far, without weights: the one
file to take home. `--list` prints the jobs. The minutes are those of an H200.
"""

import argparse
import os
import shlex
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
GRACE = 1.0  # minutes that trainings get to write their checkpoints, at the end
STOPPING = 10.0  # seconds that a job gets to end its processes when its time is over
PARTS = 8  # processes of the golden losses
THREADS = 4  # that compile, of each process: several processes compile at once, and the cores are the limit
KEPT = {".txt", ".part", ".json", ".jsonl", ".yaml", ".md"}  # in results.tar.gz, of files below LARGEST bytes
LARGEST = 2**20
VIT = ("plain, 200 epochs",)  # what its table lacks: as much plain fine-tuning
TRANSFER = (  # what the other tables lack, the most promising first
    "half repeated",
    "half repeated, averaged weights",
    "3 x the rate",
    "plain, 3 x the rate",
    "half repeated, averaged weights, two teachers",
    "half repeated, averaged weights, teacher",
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
    golden = tuple(f"tests/golden/test_golden.py --device cuda --part {i}/{PARTS}" for i in range(1, PARTS + 1))
    steps = "benchmarks/steps.py --seconds 2"
    trainings = "--data {data} --minutes-left {minutes} --jobs"
    weights = "--weights {data}/efficientnet-lite0-57934424.pth"
    finetune = f"benchmarks/finetune.py --known results/finetune.json {weights} {trainings} 6"
    transfer = f"benchmarks/transfer_table.py --known results/transfer.json --out {{out}}/transfer {trainings} 6 --rows"
    rows, pairs = shlex.join(TRANSFER), "--sources cifar100 cifar100-to-cifar10"
    wide = shlex.join(("plain", "converted", "half repeated"))
    queue = "-m mixmo reproduce --queue results/{name}.yaml --out {{out}}/{name} " + trainings + " 3"
    return {
        "golden": Job(golden, 2),
        "convolutions-check": Job(("benchmarks/convolutions.py --check --seconds 90",), 2),
        "serve": Job(("benchmarks/serve.py --seconds 8",), 1),
        "convolutions": Job(("benchmarks/convolutions.py --tiles",), 3),
        "wrn-256": Job((f"{steps} wrn28-10:256 wrn28-10:256:auto wrn28-10:256:fp8",), 3),
        "wrn-others": Job((f"{steps} wrn28-10:64 wrn28-10:64:auto wrn28-10:64:fp8 wrn28-4:512 wrn28-4:512:fp8",), 4),
        "timm": Job(("benchmarks/steps.py resnet50 convnext_tiny vit_small_patch16_224",), 3),
        "bench-bf16": Job((f"{BENCH} --precision bf16",), 2),
        "bench-fp8": Job((f"{BENCH} --precision fp8",), 2),
        "finetune": Job((f"{finetune} --out {{out}}/finetune",), 12),
        "transfer-vit": Job((f"{transfer} {shlex.join(VIT)} {pairs} --networks vit12-3",)),
        "transfer-wrn": Job((f"{transfer} {rows} --sources cifar100 --networks wrn28-4",)),
        "transfer": Job((f"{transfer} {rows} --networks vit12-3 wrn28-4",)),
        "transfer-wrn10": Job((f"{transfer} {wide} --sources cifar100 --networks wrn28-10 --seeds 1",)),
        "fp8": Job((queue.format(name="fp8", data="{data}", minutes="{minutes}"),)),
        "queue": Job((queue.format(name="queue", data="{data}", minutes="{minutes}"),)),
    }


def run_all(commands: Sequence[str], log: Path, minutes: float) -> bool:
    """Run the commands at the same time; return whether all succeeded."""
    deadline = time.monotonic() + 60 * minutes
    path = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
    threads = {"TORCHINDUCTOR_COMPILE_THREADS": str(THREADS)}
    environment = {**threads, **os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": path}
    with log.open("w") as file:
        processes = [
            subprocess.Popen(
                [sys.executable, *shlex.split(command)],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                process_group=0,
            )
            for command in commands
        ]
        try:
            for process in processes:
                process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            print(f"stopped after {minutes:.1f} minutes", file=file)
        finally:
            end(processes)
    return all(process.returncode == 0 for process in processes)


def end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """End what is left of the processes and of those that they have started: they would disturb the next job."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        until = time.monotonic() + STOPPING
        for process in processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))


def pack(out: Path) -> None:
    """Write OUT/results.tar.gz."""
    with tarfile.open(out / "results.tar.gz", "w:gz") as archive:
        for path in sorted(out.rglob("*")):
            if path.suffix in KEPT and path.is_file() and path.stat().st_size < LARGEST:
                archive.add(path, path.relative_to(out))


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
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # and the job under way with it
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
        if not good:
            print("".join(f"    {line}\n" for line in part.read_text(errors="replace").splitlines()[-5:]), flush=True)
        pack(out)


if __name__ == "__main__":
    main()
