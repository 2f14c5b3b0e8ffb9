"""Workers that are processes of this machine, which share its GPU."""

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple

import torch

from mixmo.engine import Runtime, train
from mixmo.recipes.schema import Recipe
from mixmo.reproduce.execute import SAVING
from mixmo.utils.errors import UserError, first_line
from mixmo.utils.signals import Stopped


class Worker(NamedTuple):
    process: BaseProcess
    report: Connection  # where it sends its outcome


class Processes:
    """Train each run in its own process."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime

    def start(self, recipe: Recipe, folder: Path) -> Worker:
        context = multiprocessing.get_context("spawn")  # a forked process cannot use CUDA
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_train, args=(recipe, folder, self.runtime, torch.get_num_threads(), theirs))
        process.start()
        theirs.close()
        return Worker(process, ours)

    def ended(self, workers: Sequence[Worker], timeout: float) -> list[Worker]:
        multiprocessing.connection.wait([worker.process.sentinel for worker in workers], timeout)
        return [worker for worker in workers if worker.process.exitcode is not None]

    def outcome(self, worker: Worker, folder: Path) -> str | None:
        try:
            found: str | None = worker.report.recv()
        except EOFError:  # it was killed, or stopped before it could train
            if worker.process.exitcode == -signal.SIGTERM:
                return None
            return f"its process ended with status {worker.process.exitcode}"
        return found

    def stop(self, workers: Sequence[Worker]) -> None:
        for worker in workers:
            worker.process.terminate()
        until = time.monotonic() + SAVING
        for worker in workers:
            worker.process.join(max(0.0, until - time.monotonic()))
            if worker.process.exitcode is None:
                worker.process.kill()
                worker.process.join()


def _train(recipe: Recipe, folder: Path, runtime: Runtime, threads: int, report: Connection) -> None:
    torch.set_num_threads(threads)  # their number decides the last bits on a CPU
    threading.Thread(target=_stop_without_parent, daemon=True).start()
    try:
        train(recipe, folder, runtime, resume=True)
        report.send("")
    except (Stopped, KeyboardInterrupt):
        report.send(None)
    except UserError as error:
        report.send(str(error))
    except BaseException as error:
        report.send(first_line(error))
        raise


def _stop_without_parent() -> None:
    """Save and stop when the parent was killed, or the same command would find its runs taken."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)
