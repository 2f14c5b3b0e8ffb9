"""Training speed of several networks: compiled at the same time, timed one after the other.

    python benchmarks/steps.py resnet50 convnext_tiny vit_small_patch16_224
    python benchmarks/steps.py wrn28-10:256 wrn28-10:256:auto wrn28-10:256:fp8 wrn28-4:512

A timm model gives three rows: a plain compiled loop, and the engine with M = 1 and M = 2, which chooses its kernels.
The plain loop is what a user would write: torch.compile, channels_last, autocast to bf16, fused AdamW, one batch that
lies on the device. The engine also crops, flips, normalises and mixes new images in every step. WRN-d-w:BATCH is
Cut-MixMo in bf16; `auto` chooses its kernels, `fp8` trains in fp8. Rates are medians of `--repeats`, sustained for
`--seconds` each. `--profile DIR` writes the kernels of a step and their times, one file per row.
"""

import argparse
import multiprocessing
import statistics
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile

from mixmo.engine.step_timer import StepTimer, random_dataset, synchronize
from mixmo.recipes import named
from mixmo.recipes.protocols import FACTS, Facts

CLASSES = 100
PROFILED = 3  # steps


class Variant(NamedTuple):
    """What is timed: a timm model in a plain loop (0 members) or in the engine, or a WRN with a choice of kernels."""

    name: str
    members: int
    batch: int
    size: int
    kernels: str = "cudnn"

    @property
    def chooses(self) -> bool:
        """Whether it times convolutions before its first step, which needs a quiet GPU."""
        return self.kernels != "cudnn"

    @property
    def label(self) -> str:
        what = "plain compiled loop" if self.members == 0 else f"M = {self.members}, {self.kernels}"
        return f"{self.name}, {what}, batch {self.batch}"


def variants(text: str, batch: int, size: int) -> list[Variant]:
    """
    >>> [variant.kernels for variant in variants("wrn28-10:256:fp8", 128, 224)]
    ['fp8']
    """
    name, *rest = text.split(":")
    if name.startswith("wrn"):
        return [Variant(name, 2, int(rest[0]), 32, *rest[1:])]
    return [Variant(name, members, batch, size, "auto" if members else "cudnn") for members in (0, 1, 2)]


def build(variant: Variant, device: torch.device) -> Callable[[], None]:
    """Return a function that takes a step."""
    if variant.members == 0:
        return plain(variant, device)
    if variant.name.startswith("wrn"):
        depth, width = variant.name.removeprefix("wrn").split("-")
        precision = "fp8" if variant.kernels == "fp8" else "bf16"
        recipe = named("cifar100/cut-mixmo").replace(
            depth=int(depth), width=int(width), batch_size=variant.batch, precision=precision
        )
        dataset = random_dataset("cifar100", FACTS["cifar100"], device)
    else:
        method = "vanilla" if variant.members == 1 else "cut-mixmo"
        recipe = named(f"finetune/{method}").replace(
            model=f"timm/{variant.name}",
            pretrained=False,
            batch_size=variant.batch,
            repetition=1,
            layer_decay=1.0,
            clip_grad=0.0,
        )
        facts = Facts(4 * variant.batch, 2, (3, variant.size, variant.size), CLASSES)
        dataset = random_dataset("random", facts, device)
    kernels = "auto" if variant.chooses else "cudnn"
    return StepTimer(recipe, dataset, device, compiled=device.type == "cuda", kernels=kernels).next_step


def plain(variant: Variant, device: torch.device) -> Callable[[], None]:
    """Return a step of a plain compiled loop."""
    import timm

    model = timm.create_model(variant.name, num_classes=CLASSES).train()
    model.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    compiled = torch.compile(model) if device.type == "cuda" else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    images = torch.randn(variant.batch, 3, variant.size, variant.size, device=device)
    images = images.to(memory_format=torch.channels_last)
    labels = torch.randint(0, CLASSES, (variant.batch,), device=device)

    def step() -> None:
        with torch.autocast(device.type, torch.bfloat16):
            loss = F.cross_entropy(compiled(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def kernels_of(step: Callable[[], None], device: torch.device) -> str:
    """Return the kernels of a step, their milliseconds and how often they run, the slowest first."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        for _ in range(PROFILED):
            step()
        synchronize(device)
    found = [event for event in profiled.key_averages() if event.self_device_time_total > 0]
    found.sort(key=lambda event: -event.self_device_time_total)
    times = [(event.self_device_time_total / PROFILED / 1e3, event.count // PROFILED, event.key) for event in found]
    lines = [f"{sum(one[0] for one in times):8.3f} ms in all"]
    lines += [f"{milliseconds:8.3f} {count:4} {name[:150]}" for milliseconds, count, name in times]
    return "\n".join(lines) + "\n"


def work(
    variant: Variant, device: torch.device, seconds: float, repeats: int, profiles: Path | None, parent: Connection
) -> None:
    """Build and compile a step, and time it when the parent says so."""
    try:
        if variant.chooses:
            parent.recv()
        step = build(variant, device)
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)  # choosing kernels takes more than the step, which begins here
        if variant.chooses:
            parent.send("chosen")
        # The GPU is not quiet: no search for the fastest algorithms yet. cuDNN's plans are kept by shape and by this
        # flag; without another flag now, the search below would find those of this step.
        torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = False, True
        began = time.perf_counter()
        step()
        synchronize(device)
        compiling = time.perf_counter() - began
        parent.send("ready")
        parent.recv()
        torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = True, False
        for _ in range(6):  # searches, and records
            step()
        synchronize(device)
        rates = [rate(step, variant.batch, device, seconds) for _ in range(repeats)]
        memory = torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else 0.0
        median = statistics.median(rates)
        spread = (max(rates) - min(rates)) / median
        if profiles is not None:
            name = "".join(letter if letter.isalnum() else "-" for letter in variant.label)
            (profiles / f"{name}.txt").write_text(kernels_of(step, device))
        parent.send({"rate": median, "spread": spread, "compiling": compiling, "memory": memory})
    except Exception:
        parent.send({"error": traceback.format_exc()})


def rate(step: Callable[[], None], batch: int, device: torch.device, seconds: float) -> float:
    steps, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        for _ in range(5):
            step()
        synchronize(device)
        steps += 5
    return steps * batch / (time.perf_counter() - began)


class Worker:
    """A process that compiles and times one variant."""

    def __init__(self, variant: Variant, *given: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self.variant = variant
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=work, args=(variant, *given, theirs), daemon=True)
        self.process.start()
        theirs.close()

    def tell(self, word: str) -> None:
        with suppress(OSError):  # if it has ended, `wait` says so
            self.connection.send(word)

    def wait(self) -> Any:
        try:
            return self.connection.recv()
        except (EOFError, OSError):
            self.process.join(10)
            return {"error": f"its process ended with status {self.process.exitcode}"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="+")
    parser.add_argument("--batch", type=int, default=128, help="of timm models")
    parser.add_argument("--size", type=int, default=224, help="of timm models' images")
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--profile", type=Path, metavar="DIR", help="write the kernels of a step here")
    given = parser.parse_args()
    if given.profile is not None:
        given.profile.mkdir(parents=True, exist_ok=True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    chosen = [variant for text in given.networks for variant in variants(text, given.batch, given.size)]
    workers = [Worker(variant, device, given.seconds, given.repeats, given.profile) for variant in chosen]
    failed = {
        id(worker): found for worker in workers if not worker.variant.chooses and (found := worker.wait()) != "ready"
    }
    for worker in workers:  # now that nothing compiles
        if worker.variant.chooses:
            worker.tell("choose")
            if (found := worker.wait()) != "chosen":
                failed[id(worker)] = found
    for worker in workers:
        if worker.variant.chooses and id(worker) not in failed and (found := worker.wait()) != "ready":
            failed[id(worker)] = found
    print("| network | images/s | spread | compiling s | GiB |\n|---|---|---|---|---|")
    for worker in workers:
        if (found := failed.get(id(worker))) is None:
            worker.tell("go")
            found = worker.wait()
        if "error" in found:
            print(f"| {worker.variant.label} | failed: {found['error'].strip().splitlines()[-1]} | | | |", flush=True)
            continue
        cells = [f"{found['rate']:,.0f}", f"{100 * found['spread']:.1f} %", f"{found['compiling']:.0f}"]
        print(f"| {' | '.join([worker.variant.label, *cells])} | {found['memory']:.2f} |", flush=True)


if __name__ == "__main__":
    main()
