"""Eager, compiled and graphed steps are the same training; where one is not possible, another takes over unharmed."""

import copy
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from mixmo import data
from mixmo.data.types import Dataset, Split
from mixmo.engine.batch import Batches, Now
from mixmo.engine.initialization import fresh_network
from mixmo.engine.optimizer import make_optimizer
from mixmo.engine.step import Graph, Step, accuracy
from mixmo.mixing.loss import loss
from mixmo.mixing.types import Mix
from mixmo.recipes import Recipe, named
from mixmo.utils.rng import Stream

TINY = named("digits/cut-mixmo").replace(width=1, batch_size=32, lr=0.02)
STEPS = 20
gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")


@pytest.fixture
def exact() -> Iterator[None]:
    """Convolutions in full float32, by algorithms that repeat."""
    cudnn = torch.backends.cudnn
    before = cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark
    cudnn.allow_tf32, cudnn.deterministic = False, True
    yield
    cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark = before


class Training:
    """Steps of a recipe from fresh weights."""

    def __init__(self, dataset: Dataset, recipe: Recipe = TINY, *, compiled: bool = False, graphed: bool = False):
        device = dataset.train.images.device
        self.dataset, self.stream = dataset, Stream(recipe.seed, device)
        self.net = fresh_network(recipe, dataset).to(device, memory_format=torch.channels_last)
        self.optimizer = make_optimizer(self.net, recipe)
        self.batches = Batches(recipe, dataset, dataset.train)
        self.step = Step(self.net, self.optimizer, self.batches, compiled=compiled, graphed=graphed)
        self.recipe = recipe

    def run(self, steps: int = STEPS) -> Tensor:
        """The losses of these steps; the learning rate and the probability of a mask change on the way."""
        unique = self.recipe.batch_size // self.recipe.repetition
        sums = []
        for number in range(steps):
            samples = torch.arange(number * unique, (number + 1) * unique, device=self.step.device)
            draws = self.batches.draw(samples, self.stream.at("step", number))
            self.step(draws, self.recipe.rate * (number + 1) / steps, 1 - number / steps)
            sums.append(self.step.meter.clone())
        return torch.stack(sums).diff(dim=0, prepend=torch.zeros_like(sums[0])[None])[:, 0].cpu()

    def state(self) -> dict[str, Tensor]:
        momentum = {f"momentum {i}": s["momentum_buffer"] for i, s in enumerate(self.optimizer.state.values())}
        return {**self.net.state_dict(), **momentum}


def assert_close(one: Training, two: Training, tolerance: float = 1e-2) -> None:
    """Weights, statistics and momentum, each as a whole.

    Rounding alone leaves 2e-6 here; one ReLU that it turns on or off moves the momentum of one channel by 3e-3.
    """
    for (name, left), right in zip(one.state().items(), two.state().values(), strict=True):
        distance = (left.double() - right.double()).norm() / right.double().norm().clamp_min(1e-12)
        assert distance <= tolerance, f"{name}: {distance:.1e}"


@pytest.mark.slow
@pytest.mark.parametrize(("ghost", "backend"), [(0, "inductor"), (8, "aot_eager")])
def test_compiled_equals_eager(digits: Dataset, ghost: int, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ghost batches the C++ takes as long again: test_ghost.py compiles one layer, the tests on a GPU a step."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    recipe = TINY.replace(ghost=ghost)
    eager, compiled = Training(digits, recipe), Training(digits, recipe, compiled=True)
    torch.testing.assert_close(compiled.run(), eager.run(), rtol=1e-5, atol=1e-5)
    assert (eager.step.mode, compiled.step.mode) == ("eager", "compiled")
    assert_close(compiled, eager)


class Operations(TorchDispatchMode):
    """The names of the operations that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("method", ["vanilla", "cutmix", "cut-mixmo", "cut-mixmo+cutmix", "manifold-mixup"])
def test_nothing_is_sorted_in_the_compiled_part(digits: Dataset, method: str) -> None:
    """A sort combined with CutMix's reduction took Triton more than two minutes to compile: orders are drawn before."""
    recipe = named(f"digits/{method}").replace(batch_size=32)
    batches = Batches(recipe, digits, digits.train)
    draws = batches.draw(torch.arange(32 // recipe.repetition), torch.Generator())
    with Operations() as operations:
        batches.mix(draws, Now.at(0.5))
    assert "index" in operations.names
    assert "sort" not in operations.names


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_the_step_learns_and_counts(digits: Dataset) -> None:
    training = Training(digits, TINY.replace(lr=0.5))
    losses = training.run(40)
    assert losses[-5:].mean() < losses[:5].mean()
    assert training.net.core.stages[0][0].bn1.num_batches_tracked == 40


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_precision_of_the_network(digits: Dataset, precision: str) -> None:
    """The products are of that precision; the loss is taken of them in float32."""
    training = Training(digits, TINY.replace(precision=precision))
    net = copy.deepcopy(training.net)
    draws = training.batches.draw(torch.arange(16), training.stream.at("step", 0))
    mix = training.batches.mix(draws, Now.at(0.5))
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        logits = net(mix)
    assert logits.dtype == {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]
    training.step(draws, 0.1, 0.5)
    right = (logits.argmax(2) == mix.targets).double().mean()
    torch.testing.assert_close(training.step.meter[:2], torch.stack((loss(logits.float(), mix).double(), right)))


def broken(after: Callable[[Any], None]) -> Callable[..., Any]:
    """A torch.compile whose product fails in its first call, after some work."""

    def compile(function: Callable[..., Any], **_: Any) -> Callable[..., Any]:
        def call(*args: Any) -> None:
            after(function(*args))
            raise RuntimeError("no compiler here\nand a long trace")

        return call

    return compile


def test_a_failed_compilation_runs_eagerly_with_equal_losses(digits: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """The failed step had already moved the batch statistics: they are put back, nothing counts twice."""
    eager = Training(digits)
    expected = eager.run()
    monkeypatch.setattr(torch, "compile", broken(lambda result: result[0].backward()))
    training = Training(digits, compiled=True)
    with pytest.warns(RuntimeWarning, match=r"cannot be compiled \(RuntimeError: no compiler here\)") as said:
        losses = training.run()
    assert len(said) == 1
    assert training.step.mode == "eager"
    assert torch.equal(losses, expected)
    assert_close(training, eager, 0.0)


def test_errors_that_are_not_the_compilers(digits: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug is not hidden by the fallback."""
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    training = Training(digits, compiled=True)
    monkeypatch.setattr(training.batches, "mix_paired", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError), pytest.warns(RuntimeWarning, match="cannot be compiled"):
        training.run(1)


def test_gradaug_adds_its_loss_and_runs_eagerly() -> None:
    images = torch.randint(0, 256, (32, 32, 32, 1), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    split = Split(images, torch.arange(32) % 10)
    dataset = Dataset("random", split, split, tuple("0123456789"), (0.5,), (0.25,))
    recipe = named("digits/gradaug").replace(width=1, batch_size=8)
    with pytest.warns(RuntimeWarning, match="sub-networks change shape") as said:
        training = Training(dataset, recipe, compiled=True)
    assert len(said) == 1
    assert training.step.mode == "eager"
    alone = Training(dataset, recipe.replace(subnets=0)).run(1)
    assert training.run(1) > alone  # the same batch and weights, plus divergences, which are positive


def test_accuracy_of_hard_and_soft_targets() -> None:
    logits = torch.eye(3).expand(2, 3, 3)
    hard = torch.tensor([[0, 1, 2], [0, 0, 0]])
    none = torch.empty(0)
    assert accuracy(logits, Mix(none, none, hard, none)).item() == pytest.approx(4 / 6)
    soft = 0.6 * torch.nn.functional.one_hot(hard, 3) + 0.4 / 3
    assert accuracy(logits, Mix(none, none, soft, none)).item() == pytest.approx(4 / 6)


# On a GPU


@pytest.fixture(scope="module")
def on_gpu() -> Dataset:
    return data.load("digits", device=torch.device("cuda"))


@gpu
@pytest.mark.parametrize(
    ("compiled", "graphed", "ghost"), [(False, True, 0), (True, False, 0), (True, True, 0), (True, True, 8)]
)
def test_gpu_steps_equal_eager(on_gpu: Dataset, exact: None, compiled: bool, graphed: bool, ghost: int) -> None:
    recipe = TINY.replace(ghost=ghost)
    eager, other = Training(on_gpu, recipe), Training(on_gpu, recipe, compiled=compiled, graphed=graphed)
    expected, losses = eager.run(), other.run()
    print(f"compiled {compiled}, graphed {graphed}: largest difference {(losses - expected).abs().max():.2e}")
    torch.testing.assert_close(losses, expected, rtol=1e-5, atol=1e-5)
    assert_close(other, eager)
    assert other.net.core.stages[0][0].bn1.num_batches_tracked == STEPS
    assert other.step.mode == ", ".join(["compiled"] * compiled + ["graphed"] * graphed)


@gpu
def test_gpu_half_precision(on_gpu: Dataset) -> None:
    """bf16 keeps 8 bits: fused kernels round less often, so compiled losses differ by about that."""
    half = TINY.replace(precision="bf16")
    eager, graphed, both = (
        Training(on_gpu, half, compiled=c, graphed=g).run() for c, g in ((False, False), (False, True), (True, True))
    )
    print(f"bf16: graphed {(graphed - eager).abs().max():.2e}, compiled {(both - eager).abs().max():.2e}")
    torch.testing.assert_close(graphed, eager, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(both, eager, rtol=2e-2, atol=2e-2)


@gpu
def test_gpu_never_waits(on_gpu: Dataset) -> None:
    training = Training(on_gpu, graphed=True)
    training.run(Graph.WARMUP + 1)
    torch.cuda.set_sync_debug_mode("error")
    try:
        draws = training.batches.draw(torch.arange(16, device="cuda"), training.stream.at("step", 9))
        training.step(draws, 0.01, 0.5)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@gpu
def test_gpu_capture_that_fails(on_gpu: Dataset, exact: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Something in the step waits for the device, which no graph may: training goes on as if nobody had tried."""
    eager, training = Training(on_gpu), Training(on_gpu, graphed=True)
    expected, mix = eager.run(), training.batches.mix

    def waits(*args: Any) -> Mix:
        torch.cuda.current_stream().synchronize()
        return mix(*args)

    monkeypatch.setattr(training.batches, "mix_paired", waits)
    stream = torch.cuda.current_stream()
    with pytest.warns(RuntimeWarning, match="cannot be recorded as a CUDA graph") as said:
        losses = training.run()
    print(said[0].message)
    assert len(said) == 1
    assert torch.cuda.current_stream() == stream
    torch.testing.assert_close(losses, expected, rtol=1e-5, atol=1e-5)
    assert_close(training, eager)
