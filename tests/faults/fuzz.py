"""Fuzz everything that reads files of strangers: `make fuzz`, or `python tests/faults/fuzz.py --count 10000 --seed 0`.

Each damaged file must be read, or raise a UserError of one sentence, within 10 seconds of the processor and 1 GiB above
what the process takes. Anything else is a finding: another exception, a crash, a hang, too much memory.
"""

import argparse
import ctypes
import itertools
import json
import mmap
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from faults.mutations import mutate
from faults.targets import TARGETS, Target, make
from helpers import address_space
from mixmo.utils.errors import UserError

GIB, SECONDS, PATIENCE = 1.0, 10.0, 120.0  # memory, time of the processor, time that sleeping may take
EACH = 500  # trials per process
LONGEST = 1000  # characters of a sentence
ONE_ARENA = (-8, 1)  # of malloc: those of many threads would count as memory


class Finding(NamedTuple):
    """A trial that did not end as it must."""

    trial: int
    file: str  # the valid one
    problem: str
    content: bytes  # of the damaged one


class Result(NamedTuple):
    """The trials of a target."""

    read: int
    rejected: int
    findings: list[Finding]
    seconds: float


def fuzz(target: Target, count: int, seed: int, first: int = 0) -> Result:
    """Run `count` trials of a target in child processes; trial `i` depends on `seed` and `i` alone."""
    start = time.monotonic()
    ended, findings = Counter[str](), list[Finding]()
    with tempfile.TemporaryDirectory() as temporary, mmap.mmap(-1, 8) as current:
        folder = Path(temporary) / "files"
        folder.mkdir()
        files = make(target, folder)
        contents = [file.read_bytes() for file in files]
        trial, stop = first, first + count
        while trial < stop:
            log, last = Path(temporary) / "log", min(trial + EACH, stop)
            child = os.fork()
            if not child:
                _work(target, folder, files, contents, seed, range(trial, last), log, current)
            status = os.waitpid(child, 0)[1]
            lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
            problems = [(number, how) for number, how in lines if how not in ("read", "rejected")]
            ended.update(how for _, how in lines)
            if status:
                last = int.from_bytes(current[:], "little") + 1
                problems.append((last - 1, f"ended by {signal.Signals(os.WTERMSIG(status)).name}"))
            for number, problem in problems:
                place, content = damaged(files, contents, seed, number)
                findings.append(Finding(number, str(files[place].relative_to(folder)), problem, content))
            for file, content in zip(files, contents, strict=True):
                file.write_bytes(content)
            log.unlink(missing_ok=True)
            trial = last
    return Result(ended["read"], ended["rejected"], findings, time.monotonic() - start)


def damaged(files: list[Path], contents: list[bytes], seed: int, trial: int) -> tuple[int, bytes]:
    """Return which file a trial damages, and its content then."""
    random = Random(f"{seed} {trial}")
    place = random.randrange(len(files))
    return place, mutate(files[place].name, contents[place], contents, random)


def _work(target, folder, files, contents, seed, trials, log, current) -> None:  # type: ignore[no-untyped-def]
    """Run trials, and end the process."""
    status = 1
    try:
        with log.open("w", buffering=1) as lines, open(os.devnull, "w") as null:
            os.dup2(null.fileno(), 1)
            os.dup2(null.fileno(), 2)
            ctypes.CDLL(None).mallopt(*ONE_ARENA)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            limit = address_space() + int(GIB * 2**30)
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
            for trial in trials:
                current[:] = trial.to_bytes(8, "little")
                place, content = damaged(files, contents, seed, trial)
                files[place].write_bytes(content)
                lines.write(json.dumps([trial, outcome(target, folder, files[place])]) + "\n")
                files[place].write_bytes(contents[place])
        status = 0
    finally:
        os._exit(status)


def outcome(target: Target, folder: Path, file: Path) -> str:
    """Read a damaged file; return "read", "rejected" or what is wrong."""
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE)
    try:
        with warnings.catch_warnings(action="ignore"):
            target.read(folder, file)
        return "read"
    except Exception as error:
        causes = list(_causes(error))
        if any(
            isinstance(cause, MemoryError) or "allocate" in str(cause) or "MemoryError" in str(cause)
            for cause in causes
        ):
            return f"memory: {_where(causes[-1])}"
        if not isinstance(error, UserError):
            return f"{type(error).__name__} {_where(error)}"
        message = str(error).replace(str(folder), "FOLDER")  # its name may be anything; all else is quoted
        return "rejected" if message.isprintable() and 0 < len(message) < LONGEST else f"no sentence: {message!r}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _where(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)[-3:]
    return f"in {' '.join(f'{Path(frame.filename).name}:{frame.lineno}' for frame in frames)}: {str(error)[:100]}"


def _kind(finding: Finding) -> str:
    """Return the problem without the message, which quotes the file."""
    return finding.problem.partition(": ")[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000, help="trials per target")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--targets", nargs="*", default=list(TARGETS), choices=TARGETS)
    parser.add_argument("--keep", type=Path, help="folder for the files of findings")
    parsed = parser.parse_args()
    torch.set_num_threads(1)
    failed = False
    for name in parsed.targets:
        count = max(1, parsed.count // TARGETS[name].share)
        result = fuzz(TARGETS[name], count, parsed.seed)
        counts = f"{result.read:,} read, {result.rejected:,} rejected, {len(result.findings):,} findings"
        print(f"{name:10} {count:,} trials: {counts}; {result.seconds:.0f} s", flush=True)
        kinds = itertools.groupby(sorted(result.findings, key=_kind), _kind)
        for _, same in kinds:
            found = list(same)
            problem = found[0].problem
            print(f"    {len(found)} x trial {found[0].trial}, {found[0].file}: {problem}", flush=True)
            if parsed.keep:
                smallest = min(found, key=lambda each: len(each.content))
                parsed.keep.mkdir(parents=True, exist_ok=True)
                (parsed.keep / f"{name}-{smallest.trial}-{Path(smallest.file).name}").write_bytes(smallest.content)
        failed = failed or bool(result.findings)
    sys.exit(failed)


if __name__ == "__main__":
    main()
