"""Two processes that train together on this CPU (gloo): one of them is lost, slow, out of memory or started wrongly.

`python tests/faults/ranks.py` injects each fault, prints how the job ended and after how many seconds, and resumes it.
Each process is forked, so that it need not import PyTorch again.
"""

import argparse
import atexit
import os
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import lightning_fabric  # noqa: F401  as the next one, so that no process imports it again
import torch
import torch._dynamo
from small_world import COMMON, SMALL, patch, prepare

from mixmo.cli.app import main
from mixmo.data import DATASETS
from mixmo.data.digits import digits
from mixmo.engine.distributed import end
from mixmo.engine.step import Step

COMMAND = [*SMALL, "--epochs", "4", "--save_seconds", "0", "--wait_seconds", "10", *COMMON]


def in_step(number: int, fault: Callable[[], Any]) -> Callable[[], None]:
    """Let a step of this process begin with a fault."""

    def install() -> None:
        call, done = Step.__call__, []

        def faulty(*arguments: Any) -> None:
            done.append(0)
            if len(done) == number:
                fault()
            call(*arguments)

        Step.__call__ = faulty  # type: ignore[method-assign]

    return install


def signalled(number: int) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


def changed_digits() -> None:
    """One pixel differs, as after a bad copy."""
    patched = digits(Path())
    patched.train.images[0, 0, 0, 0] += 1
    DATASETS._things["digits"] = lambda root: patched


def out_of_memory() -> None:
    torch.empty(2**60, dtype=torch.uint8)


class Fault(NamedTuple):
    """What happens to process 1."""

    install: Callable[[], Any] = int  # nothing
    options: tuple[str, ...] = ()  # of its command only
    named: str = "process 1"  # what the errors must say
    port_taken: bool = False


FAULTS = {
    "killed": Fault(in_step(7, signalled(signal.SIGKILL))),
    "stopped": Fault(in_step(7, signalled(signal.SIGSTOP))),
    "slow": Fault(in_step(7, lambda: time.sleep(30))),
    "out of memory": Fault(in_step(7, out_of_memory)),
    "killed at the start": Fault(signalled(signal.SIGKILL), named=""),  # torchrun names it
    "port taken": Fault(named="EADDRINUSE", port_taken=True),
    "another recipe": Fault(options=("--lr", "0.3"), named="(process 1): "),
    "other data": Fault(changed_digits, named="process 1 and process 0 differ in their data (images"),
}


class Job(NamedTuple):
    statuses: list[int]  # by rank; negative: the signal that ended it
    said: str
    seconds: float


def start(folder: Path, fault: Fault = Fault(), resume: bool = False) -> Job:  # noqa: B008
    """Run two processes; if one fails, send SIGTERM to the other, and after 30 s SIGKILL, as torchrun does."""
    server = socket.create_server(("127.0.0.1", 0))
    port = server.getsockname()[1]
    if not fault.port_taken:
        server.close()
    began, log = time.monotonic(), folder / "log"
    log.unlink(missing_ok=True)
    ranks = [fork(rank, port, folder, log, fault if rank else Fault(), resume) for rank in range(2)]
    statuses: dict[int, int] = {}
    until = began + 120
    while len(statuses) < 2 and time.monotonic() < until:
        for rank, process in enumerate(ranks):
            if rank not in statuses and (found := os.waitpid(process, os.WNOHANG))[0]:
                statuses[rank] = os.waitstatus_to_exitcode(found[1])
                if statuses[rank]:
                    until = min(until, time.monotonic() + 30)
                    for other in set(ranks) - {process}:
                        with suppress(ProcessLookupError):
                            os.kill(other, signal.SIGTERM)
        time.sleep(0.05)
    for rank in {0, 1} - statuses.keys():
        os.kill(ranks[rank], signal.SIGKILL)
        statuses[rank] = os.waitstatus_to_exitcode(os.waitpid(ranks[rank], 0)[1])
    server.close()
    return Job([statuses[0], statuses[1]], log.read_text(), time.monotonic() - began)


def fork(rank: int, port: int, folder: Path, log: Path, fault: Fault, resume: bool) -> int:
    process = os.fork()
    if not process:
        train(rank, port, folder, log, fault, resume)
    return process


def train(rank: int, port: int, folder: Path, log: Path, fault: Fault, resume: bool) -> NoReturn:
    """Be one of the processes, as torchrun would have started it."""
    atexit._clear()  # what the process that was forked has registered is for its own end
    status = 70
    try:
        names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_PORT": port}
        os.environ |= {name: str(value) for name, value in names.items()}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RUN_ID": "faults", "GROUP_RANK": "0"}
        for stream in (1, 2):
            os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
        fault.install()
        words = [*COMMAND, *fault.options, "--out", str(folder / "run"), *(["--resume"] if resume else [])]
        status = main(words)
    except BaseException:
        traceback.print_exc()
    end(status)


def inject(name: str, folder: Path) -> str:
    """Inject a fault into a new training, then resume it; return what is wrong, if anything."""
    job = start(folder, FAULTS[name])
    print(f"{name:20} ended after {job.seconds:4.0f} s with {job.statuses}", flush=True)
    resumed = start(folder, resume=True)
    if 0 in job.statuses or job.seconds > 60 or FAULTS[name].named not in job.said or "Traceback" in job.said:
        return f"{name}: {job}"
    if resumed.statuses != [0, 0] or not (folder / "run" / "scores.json").is_file():
        return f"{name}, resumed: {resumed}"
    return ""


if __name__ == "__main__":
    into = argparse.ArgumentParser(description=__doc__)
    into.add_argument("--only", nargs="+", choices=FAULTS, default=list(FAULTS))
    chosen = into.parse_args().only
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="mixmo-ranks-") as made:
        prepare(Path(made))
        patch(Path(made))
        problems = []
        for name in chosen:
            (Path(made) / name).mkdir()
            problems += [problem] if (problem := inject(name, Path(made) / name)) else []
        print("\n".join(problems) or "all ended within a minute with its sentence, and resumed")
        sys.exit(bool(problems))
