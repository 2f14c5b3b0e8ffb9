"""How fast a recipe trains and predicts here: images a second, arithmetic, memory; beside an ordinary network.

On random images in the shape of the recipe's data set, so that nothing needs to be downloaded. Compilation, the search
for kernels and the first steps stay out of the clock; every figure is the median of several repeats.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from mixmo.data.folder import PREFIX
from mixmo.data.types import Dataset
from mixmo.engine.initialization import fresh_network
from mixmo.engine.preflight import check_fit
from mixmo.engine.step import Graph, sgd
from mixmo.engine.step_timer import Bed, random_dataset, wait
from mixmo.inference.predict import predict_split
from mixmo.models import Network, multiply_adds
from mixmo.recipes import METHODS, Recipe
from mixmo.recipes.protocols import FACTS
from mixmo.surgery.fold import fold
from mixmo.utils.errors import UserError
from mixmo.utils.progress import Work

SHAPES = {name: facts for name, facts in FACTS.items() if not name.startswith(PREFIX)}  # a folder may fill the memory


@dataclass(frozen=True)
class Row:
    """One figure of a benchmark."""

    network: str  # "vanilla", or the recipe's own
    what: str
    images_per_second: float
    spread: float  # (slowest - fastest) / median of the repeats
    milliseconds: float  # a step, or a pass over the test set
    tflops: float  # 10^12 floating-point operations a second: two a multiply-add; training is three passes
    share_of_peak: float  # of this device's own largest matrix product, in the same arithmetic
    memory_gib: float | None  # most that was allocated on the device; a recorded step allocates no more
    compile_seconds: float | None  # the first steps, less what they take later


@dataclass(frozen=True)
class Result:
    """All figures of a benchmark."""

    device: str
    torch: str
    architecture: str
    batch_size: int
    precision: str
    mode: str  # how the step ran: eager, compiled, graphed
    peak_tflops: float
    rows: tuple[Row, ...]


def benchmark(
    recipe: Recipe, device: torch.device, *, compiled: bool | None = None, seconds: float, repeats: int
) -> Iterator[Result]:
    """Training and prediction of the recipe and of its vanilla network: the result so far, after each of its rows.

    Each repeat lasts about `seconds`.
    """
    on_gpu = device.type == "cuda"
    compiled = on_gpu if compiled is None else compiled
    dataset = synthetic(recipe.dataset, device)
    peak = matmul_peak(device, recipe.precision)
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
    )
    with Work("measuring", sum(3 + (chosen == single) + foldable(chosen) for chosen in recipes.values())) as work:
        for name, chosen in recipes.items():
            check_fit(chosen, dataset)
            bed = Bed(chosen, dataset, device, compiled)
            operations = 2 * multiply_adds(bed.net, recipe.seen(dataset.size))
            for row in bed_rows(bed, Meter(name, operations, peak, device, seconds, repeats, work)):
                result = replace(result, mode=bed.step.mode, rows=(*result.rows, row))
                yield result
            del bed  # its memory is not the next one's


def bed_rows(bed: Bed, meter: "Meter") -> Iterator[Row]:
    """What is measured of a network."""
    recipe, dataset = bed.recipe, bed.dataset
    n, test = recipe.batch_size, len(dataset.test.labels)
    if meter.network == "vanilla":
        yield meter("plain eager loop", plain(bed), n, passes=3)
    yield meter("training step", bed.same_step, n, passes=3, warm_up=bed.warm_up)
    yield meter("training end to end", bed.next_step, n, passes=3, memory=False)
    yield meter("prediction", predictor(bed.net, dataset, recipe), test)
    if foldable(recipe):
        yield meter("prediction, folded", predictor(fold(bed.net), dataset, recipe), test)


def foldable(recipe: Recipe) -> bool:
    """Whether there are encoders to make one of."""
    return recipe.members > 1 and recipe.encoders != 1 and recipe.mask != "concat"


class Meter:
    """Makes the rows of one network."""

    def __init__(
        self, network: str, operations: int, peak: float, device: torch.device, seconds: float, repeats: int, work: Work
    ) -> None:
        self.network, self.operations, self.peak = network, operations, peak
        self.device, self.seconds, self.repeats, self.work = device, seconds, repeats, work

    def __call__(
        self,
        what: str,
        call: Callable[[], object],
        images: int,
        passes: int = 1,
        warm_up: Callable[[], float] | None = None,
        memory: bool = True,
    ) -> Row:
        """A call that works on `images` images; `passes` forward passes' worth of arithmetic each."""
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
            memory_gib=torch.cuda.max_memory_allocated(self.device) / 2**30 if memory else None,
            compile_seconds=None if first is None else max(0.0, first - (Graph.WARMUP + 1) * timing.seconds),
        )


class Timing(NamedTuple):
    """Seconds a call took: the median of the repeats, and their range over it."""

    seconds: float
    spread: float


def timed(call: Callable[[], object], device: torch.device, seconds: float, repeats: int) -> Timing:
    """Time of a call, from repeats of about `seconds` each, after calls that do not count."""

    def repeat(calls: int) -> float:
        wait(device)
        began = time.perf_counter()
        for _ in range(calls):
            call()
        wait(device)
        return (time.perf_counter() - began) / calls

    repeat(1)
    calls = max(1, round(seconds / repeat(3)))
    results = [repeat(calls) for _ in range(repeats)]
    middle = statistics.median(results)
    return Timing(middle, (max(results) - min(results)) / middle)


def plain(bed: Bed) -> Callable[[], None]:
    """The step of an ordinary eager loop, on one batch that is there: the same network and arithmetic."""
    mix = bed.batches.mix(bed.draws, torch.zeros((), device=bed.device))
    images, targets = mix.images[0].contiguous(), mix.targets[0]
    net = fresh_network(bed.recipe, bed.dataset).to(bed.device)
    optimizer = sgd(net, bed.recipe, lr=1e-4, fused=False)

    def step() -> None:
        with torch.autocast(bed.device.type, torch.bfloat16, enabled=bed.recipe.precision == "bf16"):
            value = F.cross_entropy(net(images), targets)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()

    return step


def vanilla(recipe: Recipe) -> Recipe:
    """The ordinary network of the same size and batch."""
    changes: dict[str, Any] = {"encoders": None, "heads": None, "association": "own", "rho": 0.0}
    changes |= {"augmix": False, "pixel": "none", "feature_mixing": "none", "saliency": "none", "subnets": 0}
    return recipe.replace(**{**METHODS["vanilla"].changes, **changes})


def predictor(net: Network, dataset: Dataset, recipe: Recipe) -> Callable[[], Tensor]:
    """A pass over the test set."""
    return lambda: predict_split(net, dataset, dataset.test, recipe.precision, size=recipe.size).logits


def synthetic(name: str, device: torch.device) -> Dataset:
    """Random images and labels in the shape of a data set."""
    if name not in SHAPES:
        raise UserError(f"no benchmark in the shape of data set '{name}'; there are: {', '.join(SHAPES)}")
    return random_dataset(f"random {name}", SHAPES[name], device)


def matmul_peak(device: torch.device, precision: str) -> float:
    """10^12 operations a second of a large matrix product of random numbers, in the arithmetic of the convolutions."""
    size = 8192 if device.type == "cuda" else 1024
    a, b = (torch.randn(size, size, device=device) for _ in range(2))
    if precision == "bf16":
        a, b = a.bfloat16(), b.bfloat16()
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32
    try:
        timing = timed(lambda: a @ b, device, 0.1, repeats=5)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    return 2.0 * size * size * size / timing.seconds / 1e12
