"""Several processes, one training: `torchrun --nproc-per-node 8 -m mixmo train ...`, or Slurm's `srun`.

Each draws all that is random for the global batch and works on a part: results do not depend on the number of devices.
"""

import atexit
import functools
import inspect
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from mixmo.utils.errors import UserError, first_line

T = TypeVar("T")
ANSWER = 5.0  # seconds that the others have to say that they are there, when one was lost


class World:
    """The processes of one training, as one of them sees them. With one process, every method does nothing."""

    rank = 0
    size = 1

    @property
    def writes(self) -> bool:
        """Whether this process writes files and messages."""
        return self.rank == 0

    def part(self, count: int) -> slice:
        """Return the slice of `count` samples that this process works on."""
        each = -(-count // self.size)
        return slice(min(count, self.rank * each), min(count, (self.rank + 1) * each))

    @contextmanager
    def first(self) -> Iterator[None]:
        """Let the writing process go first: the others find the files that it writes."""
        yield

    def network(self, net: nn.Module) -> nn.Module:
        """Return the module to call in training: its gradients are averaged over the processes."""
        return net

    def mean(self, values: Tensor) -> Tensor:
        """Average over the processes."""
        return values

    def gather(self, values: Tensor, dim: int, count: int) -> Tensor:
        """Concatenate the parts of all processes along `dim`, of `count` in all."""
        return values

    def any(self, *flags: bool) -> tuple[bool, ...]:
        """Return for each flag whether it is set in any process, without waiting for the device."""
        return flags

    def broadcast(self, value: T) -> T:
        """Return the value of the writing process."""
        return value

    def all(self, value: T) -> list[T]:
        """Return the values of all processes by rank."""
        return [value]

    def silent(self) -> list[int]:
        """Return the ranks of lost processes: those that do not call this method too within some seconds."""
        return []


def _connect_after_restart(accelerator: str, timeout: timedelta) -> None:
    """Connect the processes that torchrun restarted: its store still has the addresses of those that were lost."""
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if attempt == "0" or dist.is_initialized():
        return
    store, rank, size = next(dist.rendezvous("env://", timeout=timeout))  # type: ignore[attr-defined]
    backend = "nccl" if accelerator == "cuda" else "gloo"
    prefixed = dist.PrefixStore(f"attempt {attempt}", store)  # type: ignore[attr-defined]
    dist.init_process_group(backend, store=prefixed, rank=rank, world_size=size, timeout=timeout)


class Processes(World):
    """Connected processes with one device each."""

    def __init__(self, accelerator: str, wait: float) -> None:
        from lightning_fabric import Fabric
        from lightning_fabric.strategies.ddp import DDPStrategy

        nodes = int(os.environ.get("GROUP_WORLD_SIZE", os.environ.get("SLURM_NNODES", "1")))
        world = int(os.environ.get("WORLD_SIZE", os.environ.get("SLURM_NTASKS", "1")))
        # Synchronised batch statistics are alike everywhere already. The option's name changed after torch 2.11.
        known = inspect.signature(DistributedDataParallel.__init__).parameters
        options: dict[str, Any] = {"gradient_as_bucket_view": True, "timeout": timedelta(seconds=wait)}
        options["forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"] = False
        self.fabric = Fabric(
            accelerator=accelerator, devices=world // nodes, num_nodes=nodes, strategy=DDPStrategy(**options)
        )
        _connect_after_restart(accelerator, options["timeout"])
        self.fabric.launch()
        self.rank, self.size = self.fabric.global_rank, self.fabric.world_size
        self.store = dist.distributed_c10d._get_default_store()
        self.device = self.fabric.device
        self.hosts = dist.new_group(backend="gloo", timeout=options["timeout"]) if self.device.type == "cuda" else None
        atexit.register(dist.destroy_process_group)  # gloo's threads, left running, may abort a process that ends

    @contextmanager
    def first(self) -> Iterator[None]:
        if not self.writes:
            self.fabric.barrier()
        yield
        if self.writes:
            self.fabric.barrier()

    def network(self, net: nn.Module) -> nn.Module:
        return self.fabric.strategy.setup_module(net)

    def mean(self, values: Tensor) -> Tensor:
        return all_mean(values)

    def gather(self, values: Tensor, dim: int, count: int) -> Tensor:
        each = -(-count // self.size)
        rows = values.movedim(dim, 0).contiguous()
        rows = torch.cat((rows, rows.new_zeros(each - len(rows), *rows.shape[1:])))
        parts = [torch.empty_like(rows) for _ in range(self.size)]
        dist.all_gather(parts, rows)
        return torch.cat(parts)[:count].movedim(0, dim).contiguous()

    def any(self, *flags: bool) -> tuple[bool, ...]:
        values = torch.tensor(flags, dtype=torch.int32, device="cpu")
        dist.all_reduce(values, dist.ReduceOp.MAX, self.hosts)
        return tuple(bool(value) for value in values)

    def broadcast(self, value: T) -> T:
        box = [value]
        dist.broadcast_object_list(box, 0, self.hosts)
        return box[0]

    def all(self, value: T) -> list[T]:
        values: list[T] = [value] * self.size
        dist.all_gather_object(values, value, self.hosts)
        return values

    def silent(self) -> list[int]:
        keys = {rank: f"mixmo/lost/{rank}" for rank in range(self.size)}
        with suppress(dist.DistError, RuntimeError):  # without the store, nobody knows
            self.store.set(keys[self.rank], "")
            until = time.monotonic() + ANSWER
            while not self.store.check(list(keys.values())) and time.monotonic() < until:
                time.sleep(0.1)
            return [rank for rank, key in keys.items() if not self.store.check([key])]
        return []


@functools.cache
def world(accelerator: str, wait: float) -> World:
    """Return the processes that torchrun or Slurm started, with a timeout of `wait` seconds, or this one alone."""
    if not (dist.is_torchelastic_launched() or slurm()):
        return World()
    try:
        return Processes(accelerator, wait)
    except (RuntimeError, ValueError) as error:  # Fabric's own errors are of these kinds
        reason = f"the processes could not be connected ({first_line(error)})"
        raise UserError(f"{reason}; start as many per node as it has devices") from error


def end(status: int) -> NoReturn:
    """End one of several processes without Python's last steps, in which gloo may abort: torchrun would report that."""
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(status)


def slurm() -> bool:
    """Whether Slurm's srun started several processes."""
    if int(os.environ.get("SLURM_NTASKS", "1")) == 1:
        return False
    from lightning_fabric.plugins.environments.slurm import SLURMEnvironment

    return SLURMEnvironment.detect()


@contextmanager
def lost_processes_named(world: World, out: Path) -> Iterator[None]:
    """Turn an error of a lost connection into a UserError that names the processes that do not respond."""
    words = ("Connection closed by peer", "Connection reset by peer", "gloo", "NCCL", "Timed out", "timed out")
    try:
        yield
    except RuntimeError as error:
        lost = isinstance(error, dist.DistError) or any(word in str(error) for word in words)
        if world.size == 1 or not lost:
            raise
        steps = [int(path.name) for path in (out / "checkpoints").glob("[0-9]*")]
        kept = f"the checkpoint of step {max(steps)} is complete" if steps else "no checkpoint exists"
        reason = re.sub(r"^\[\S+\] ", "", first_line(error)).partition(". ")[0]  # without source file and advice
        who = [f"process {rank}" for rank in world.silent()] or ["another process"]
        what = f"{' and '.join(who)} of this training has ended or does not respond ({reason})"
        raise UserError(f"{what}; {kept}: restart all processes with --resume") from error


def all_mean(values: Tensor) -> Tensor:
    """Average over the processes, with its gradient."""
    return AllMean.apply(values)  # type: ignore[no-any-return,no-untyped-call]


class AllMean(torch.autograd.Function):
    """Each process's loss depends on the inputs of all, so gradients are averaged on the way back."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        total = values.detach().clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total / dist.get_world_size()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return all_mean(gradients[0])
