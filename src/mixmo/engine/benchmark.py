"""Benchmark training and prediction of a recipe against a vanilla network, on random images.

Compilation and the first steps are not timed; every number is the median of several repeats.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from mixmo.data.folder import PREFIX
from mixmo.data.types import Dataset
from mixmo.engine.convolutions import Convolutions
from mixmo.engine.initialization import fresh_network
from mixmo.engine.optimizer import make_optimizer
from mixmo.engine.preflight import check_fit, check_precision
from mixmo.engine.step import Graph
from mixmo.engine.step_timer import StepTimer, random_dataset, synchronize
from mixmo.inference.compiled import compile
from mixmo.inference.predict import predict_split
from mixmo.kernels.quantisation import E4M3
from mixmo.models import multiply_adds
from mixmo.recipes import METHODS, Recipe
from mixmo.recipes.protocols import FACTS
from mixmo.surgery.fold import fold
from mixmo.utils.device import HALF, autocast
from mixmo.utils.errors import UserError
from mixmo.utils.progress import Work

SHAPES = {name: facts for name, facts in FACTS.items() if not name.startswith(PREFIX)}  # a folder may be too large


@dataclass(frozen=True)
class Row:
    network: str  # "vanilla", or the recipe's own
    what: str
    images_per_second: float
    spread: float  # (slowest - fastest) / median of the repeats
    milliseconds: float  # per step, or per pass over the test set
    tflops: float  # 10^12 FLOP/s: two per multiply-add; training counts as three forward passes
    share_of_peak: float  # of the measured rate of a large matrix product in the same precision; in bf16 for fp8
    share_of_fp8_peak: float | None  # of that of one in fp8, for a recipe in fp8
    memory_gib: float | None  # peak allocation on the device
    compile_seconds: float | None  # of the first steps, beyond what later steps take


@dataclass(frozen=True)
class Result:
    device: str
    torch: str
    architecture: str
    batch_size: int
    precision: str
    mode: str  # how the step ran: eager, compiled, graphed
    peak_tflops: float
    rows: tuple[Row, ...]
    convolutions: tuple[Convolutions, ...] = ()  # of the last network, if their kernels were chosen
    fp8_peak_tflops: float | None = None  # for a recipe in fp8


def benchmark(
    recipe: Recipe,
    device: torch.device,
    *,
    compiled: bool | None = None,
    kernels: str = "auto",
    seconds: float,
    repeats: int,
) -> Iterator[Result]:
    """Yield the result so far after each measurement, of `repeats` times about `seconds`."""
    check_precision(recipe, device)
    on_gpu = device.type == "cuda"
    compiled = on_gpu if compiled is None else compiled
    dataset = synthetic(recipe.dataset, device)
    peak = matmul_peak(device, recipe.precision)
    fp8_peak = matmul_peak_fp8(device) if recipe.precision == "fp8" else None
    single = vanilla(recipe)
    recipes = {"vanilla": single} if recipe == single else {"vanilla": single, f"M={recipe.members}": recipe}
    result = Result(
        torch.cuda.get_device_name(device) if on_gpu else f"CPU, {torch.get_num_threads()} threads",
        torch.__version__,
        recipe.architecture,
        recipe.batch_size,
        recipe.precision,
        "eager",
        peak,
        (),
        fp8_peak_tflops=fp8_peak,
    )
    rows = sum(3 + (chosen == single) + foldable(chosen) * (1 + on_gpu) for chosen in recipes.values())
    with Work("measuring", rows) as work:
        for name, chosen in recipes.items():
            check_fit(chosen, dataset)
            timer = StepTimer(chosen, dataset, device, compiled, kernels)
            operations = 2 * multiply_adds(timer.net, recipe.seen(dataset.size))
            for row in timer_rows(timer, Meter(name, operations, peak, fp8_peak, device, seconds, repeats, work)):
                measured = tuple(timer.convolutions)
                result = replace(result, mode=timer.step.mode, rows=(*result.rows, row), convolutions=measured)
                yield result
            del timer  # frees its memory for the next one


def timer_rows(timer: StepTimer, meter: "Meter") -> Iterator[Row]:
    recipe, dataset = timer.recipe, timer.dataset
    n, test = recipe.batch_size, len(dataset.test.labels)
    if meter.network == "vanilla":
        yield meter("plain eager loop", plain(timer), n, passes=3)
    yield meter("training step", timer.same_step, n, passes=3, warm_up=timer.warm_up)
    yield meter("training end to end", timer.next_step, n, passes=3, memory=False)
    predict = partial(predict_split, dataset=dataset, split=dataset.test, precision=recipe.precision, size=recipe.size)
    yield meter("prediction", lambda: predict(timer.net), test)
    if foldable(recipe):
        folded = fold(timer.net)
        yield meter("prediction, folded", lambda: predict(folded), test)
        if timer.device.type == "cuda":
            fast = compile(timer.net, precision=recipe.precision, size=recipe.seen(dataset.size))
            yield meter("prediction, folded, compiled", lambda: predict(fast), test)


def foldable(recipe: Recipe) -> bool:
    """Whether the network has several encoders to fold into one."""
    return recipe.members > 1 and recipe.encoders != 1 and recipe.mask != "concat"


class Meter(NamedTuple):
    network: str
    operations: int
    peak: float
    fp8_peak: float | None
    device: torch.device
    seconds: float
    repeats: int
    work: Work

    def __call__(
        self,
        what: str,
        call: Callable[[], object],
        images: int,
        passes: int = 1,
        warm_up: Callable[[], float] | None = None,
        memory: bool = True,
    ) -> Row:
        """Time a call that works on `images` images, with the arithmetic of `passes` forward passes each."""
        self.work.doing = f"measuring {self.network}, {what}"
        memory = memory and self.device.type == "cuda"
        if memory:
            torch.cuda.reset_peak_memory_stats(self.device)
        first = warm_up() if warm_up else None
        timing = timed(call, self.device, self.seconds, self.repeats)
        self.work.advance()
        rate = images / timing.seconds
        tflops = rate * passes * self.operations / 1e12
        return Row(
            network=self.network,
            what=what,
            images_per_second=rate,
            spread=timing.spread,
            milliseconds=1000 * timing.seconds,
            tflops=tflops,
            share_of_peak=tflops / self.peak,
            share_of_fp8_peak=None if self.fp8_peak is None else tflops / self.fp8_peak,
            memory_gib=torch.cuda.max_memory_allocated(self.device) / 2**30 if memory else None,
            compile_seconds=None if first is None else max(0.0, first - (Graph.WARMUP + 1) * timing.seconds),
        )


class Timing(NamedTuple):
    """Seconds per call: the median of the repeats, and their range divided by it."""

    seconds: float
    spread: float


def timed(call: Callable[[], object], device: torch.device, seconds: float, repeats: int) -> Timing:
    """Time a call in repeats of about `seconds` each, after a warm-up."""

    def repeat(calls: int) -> float:
        synchronize(device)
        began = time.perf_counter()
        for _ in range(calls):
            call()
        synchronize(device)
        return (time.perf_counter() - began) / calls

    repeat(1)
    calls = max(1, round(seconds / repeat(3)))
    results = [repeat(calls) for _ in range(repeats)]
    middle = statistics.median(results)
    return Timing(middle, (max(results) - min(results)) / middle)


def plain(timer: StepTimer) -> Callable[[], None]:
    """Return the step of an ordinary eager loop on one prepared batch, with the same network and arithmetic."""
    mix = timer.batches.mix(timer.draws, timer.step.now)
    images, targets = mix.images[0].contiguous(), mix.targets[0]
    net = fresh_network(timer.recipe, timer.dataset).to(timer.device)
    optimizer = make_optimizer(net, timer.recipe, fused=False)

    def step() -> None:
        with autocast(timer.device, timer.recipe.precision):
            value = F.cross_entropy(net(images), targets)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()

    return step


def vanilla(recipe: Recipe) -> Recipe:
    """Return the recipe of the vanilla network of the same size and batch size."""
    changes: dict[str, Any] = {"encoders": None, "heads": None, "association": "own", "rho": 0.0}
    changes |= {"augmix": False, "pixel": "none", "feature_mixing": "none", "saliency": "none", "subnets": 0}
    return recipe.replace(**{**METHODS["vanilla"].changes, **changes})


def synthetic(name: str, device: torch.device) -> Dataset:
    if name not in SHAPES:
        raise UserError(f"no benchmark in the shape of data set '{name}'; there are: {', '.join(SHAPES)}")
    return random_dataset(f"random {name}", SHAPES[name], device)


def matmul_peak(device: torch.device, precision: str) -> float:
    """Measure the 10^12 FLOP/s of a large matrix product in the precision of the convolutions; bf16 for fp8."""
    a, b = torch.randn(2, *matmul_size(device), device=device).to(HALF.get(precision, torch.float32))
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32
    try:
        return matmul_tflops(lambda: a @ b, device)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def matmul_peak_fp8(device: torch.device) -> float:
    """Measure the same of operands in e4m3, whose product is bfloat16."""
    a, b = torch.randn(2, *matmul_size(device), device=device).to(E4M3)
    scale, kind = torch.ones((), device=device), F.ScalingType.TensorWise
    return matmul_tflops(
        lambda: F.scaled_mm(a, b.T, scale, kind, scale, kind, output_dtype=torch.bfloat16, use_fast_accum=True), device
    )


def matmul_size(device: torch.device) -> tuple[int, int]:
    return (8192, 8192) if device.type == "cuda" else (1024, 1024)


def matmul_tflops(product: Callable[[], object], device: torch.device) -> float:
    side, _ = matmul_size(device)
    return 2.0 * side**3 / timed(product, device, 0.1, repeats=5).seconds / 1e12
