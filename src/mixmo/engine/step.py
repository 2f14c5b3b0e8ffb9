"""One optimisation step on the device: batch, forward, backward, update. Nothing here waits for the device."""

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves, tree_map_only

from mixmo.baselines.gradaug import subnet_loss
from mixmo.baselines.saliency import SaliencyDraws, Settings, mix_by_saliency
from mixmo.engine.batch import Batches, Draws, Now
from mixmo.engine.maxima import Maxima
from mixmo.engine.nonfinite import Skip
from mixmo.engine.optimizer import LossScaler
from mixmo.engine.teacher import taught
from mixmo.mixing.loss import loss
from mixmo.mixing.types import Mix
from mixmo.models import Ensemble, Network
from mixmo.recipes.schema import Recipe
from mixmo.utils.device import autocast
from mixmo.utils.errors import first_line
from mixmo.utils.progress import Work

Forward = Callable[[Draws], tuple[Tensor, Tensor]]  # loss and heads' accuracy


class Step:
    """Take optimisation steps, `step(draws, lr, chance, progress)`; losses add up on the device until `meter` is read.

    `compiled` fuses batch, network and loss into few kernels; `graphed` records the whole step as a CUDA graph. Where
    one of them is not possible, training continues without it from the same state, with one warning.
    """

    def __init__(
        self,
        net: Ensemble,
        optimizer: torch.optim.Optimizer,
        batches: Batches,
        *,
        compiled: bool,
        graphed: bool,
        model: nn.Module | None = None,
        teacher: nn.Module | None = None,
        skip: bool = False,
    ) -> None:
        """`model` is called for the network's logits, if it is not the network itself.

        With `skip`, a step whose gradient is NaN or infinite changes nothing, and counts neither in loss nor accuracy.
        """
        self.net, self.optimizer, self.batches, self.teacher = net, optimizer, batches, teacher
        self.recipe = batches.recipe
        self.model = model or net
        device = batches.split.images.device
        self.device = device
        self.skip = Skip(net, optimizer, device) if skip else None
        self.scaler = LossScaler(optimizer, device) if self.recipe.precision == "fp16" else None
        self.maxima = Maxima(net, several=isinstance(self.model, DistributedDataParallel))
        self.class_weights = class_weights(batches) if self.recipe.balance == "loss" else None
        if batches.recipe.subnets and (compiled or graphed):
            warn("GradAug's sub-networks change shape from step to step; the step runs eagerly, which is slower")
            compiled = graphed = False
        if batches.saliency is not None and (compiled or graphed):
            warn("saliency needs gradients before every step, on grids that change; it runs eagerly, which is slower")
            compiled = graphed = False
        self.lrs = [torch.zeros((), device=device) for _ in optimizer.param_groups]
        self.now = Now.at(0.0, device=device)
        # Sums over steps: loss, heads' accuracy, steps skipped, steps since the first one whose loss was not finite.
        self.meter = torch.zeros(4, device=device, dtype=torch.float64)
        self._parts = parts_of(batches.part, self.recipe)
        self._eager: Forward = self._forward_eagerly if len(self._parts) == 1 else self._forward_paired
        self._forward: Forward = self._eager
        if compiled:
            # Small kernels side by side in one launch: 2 % at batch 64 on an H200 (benchmarks/RESULTS.md).
            options: dict[str, Any] = {"combo_kernels": True} if device.type == "cuda" else {}
            self._forward = torch.compile(self._eager, dynamic=False, options=options)
            # The convolutions use it already; the matrix products of the heads are too small to matter.
            warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores")
        self._untried = compiled
        self._graph = Graph(self._run) if graphed else None
        if compiled and device.type == "cuda":
            torch.backends.cudnn.benchmark = True  # shapes never change: the search for the fastest kernels pays
        for group, lr in zip(optimizer.param_groups, self.lrs, strict=True):
            group["lr"] = lr

    def __call__(self, draws: Draws, lr: float, chance: float, progress: float = 0.0) -> None:
        for group, rate in zip(self.optimizer.param_groups, self.lrs, strict=True):
            rate.fill_(lr * group["lr_scale"])
        self.now.chance.fill_(chance)
        self.now.progress.fill_(progress)
        if self._graph is not None:
            try:
                return self._graph(draws)
            except NotCaptured as error:
                self._graph = None
                warn(f"the step cannot be recorded as a CUDA graph ({error}); it runs without, small batches slower")
        return self._run(draws)

    @property
    def mode(self) -> str:
        """How the step runs now: "eager", "compiled", "graphed" or "compiled, graphed"."""
        compiled = self._forward is not self._eager
        graphed = self._graph is not None
        return ", ".join(name for name, on in (("compiled", compiled), ("graphed", graphed)) if on) or "eager"

    def _run(self, draws: Draws) -> None:
        if self.skip is not None:
            self.skip.remember()
        value, accuracy = self._first_gradients(draws) if self._untried else self._gradients(draws)
        self._update()
        self._count(value, accuracy)

    def _count(self, value: Tensor, accuracy: Tensor) -> None:
        """Add a step to the meter; of a skipped one, only that it was. An overflow of the scaled loss is none."""
        found = torch.stack((value, accuracy)).double()
        if self.skip is not None:
            bad = self.skip.flag > 0 if self.scaler is None else ~value.isfinite()
            self.skip.undo(bad)
            found = torch.where(bad, 0.0, found)
            self.meter[2] += bad
        self.meter[:2] += found
        wrong = self.meter[0] - self.meter[0] != 0  # NaN or infinite, in fewer kernels than isfinite
        self.meter[3] += wrong if self.skip is None else wrong | (self.meter[2] > 0)

    def _gradients(self, draws: Draws) -> tuple[Tensor, Tensor]:
        """Compute the gradients of the batch, part by part; return its loss and accuracy."""
        if len(self._parts) == 1:
            return self._part_gradients(draws, first=True)
        last, results = self._parts[-1], []
        for part in self._parts:
            paired = self.batches.paired(draws, self.now, part)
            with nullcontext() if part is last else unsynchronised(self.model):
                results.append(self._part_gradients(paired, first=part is self._parts[0]))
        value, accuracy = (torch.stack(values).mean() for values in zip(*results, strict=True))
        return value, accuracy

    def _part_gradients(self, draws: Draws, first: bool) -> tuple[Tensor, Tensor]:
        value, accuracy = self._forward(draws)
        if first:
            self.optimizer.zero_grad(set_to_none=True)
            self.maxima.clear()
        share = value if len(self._parts) == 1 else value / len(self._parts)
        (share if self.scaler is None else share * self.scaler.scale).backward()
        self.maxima.collect()
        return value.detach(), accuracy

    def _update(self) -> None:
        parameters = [p for p in self.net.parameters() if p.grad is not None]
        gradients = [p.grad for p in parameters if p.grad is not None]
        if self.scaler is not None:
            self.scaler.unscale(gradients)
        elif self.skip is not None:
            self.skip.check(gradients)
        if self.recipe.clip_grad:
            torch.nn.utils.clip_grad_norm_(parameters, self.recipe.clip_grad)
        self.optimizer.step()
        if self.scaler is not None:
            self.scaler.update()
        self.maxima.update(None if self.skip is None else self.skip.flag)

    def _first_gradients(self, draws: Draws) -> tuple[Tensor, Tensor]:
        """Take the first compiled step. If it fails, restore the batch statistics and run eagerly."""
        self._untried = False
        before = [buffer.clone() for buffer in self.net.buffers()]
        try:
            with Work("compiling the step"):
                return self._gradients(draws)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # whatever a compiler raises; an error of ours comes again below
            for buffer, value in zip(self.net.buffers(), before, strict=True):
                buffer.copy_(value)
            self._forward = self._eager
            warn(f"the step cannot be compiled ({summary(error)}); it runs eagerly, which is slower")
            return self._gradients(draws)

    def _forward_eagerly(self, draws: Draws) -> tuple[Tensor, Tensor]:
        return self._forward_paired(self.batches.paired(draws, self.now, self.batches.part))

    def _forward_paired(self, draws: Draws) -> tuple[Tensor, Tensor]:
        recipe, mix = self.recipe, self.batches.mix_paired(draws, self.now)
        with autocast(self.device, recipe.precision):
            clean = None
            if draws.saliency is not None:
                mix, clean = self._by_saliency(mix, draws.saliency)
            if self.teacher is not None:
                mix = mix._replace(targets=taught(mix, self.teacher, recipe.teacher_weight))
            logits = self.model(mix)
            value = loss(logits, mix, label_smoothing=recipe.label_smoothing, class_weights=self.class_weights)
            if clean is not None:
                value = value + clean
            if draws.subnets:
                assert isinstance(self.net, Network)
                value = value + subnet_loss(self.net, mix, logits, draws.subnets)
        return value, accuracy(logits.detach(), mix)

    def _by_saliency(self, mix: Mix, draws: SaliencyDraws) -> tuple[Mix, Tensor | None]:
        """Mix the batch by saliency; return it and the loss of the unmixed batch, if that counts."""
        kind, recipe = self.batches.saliency, self.batches.recipe
        assert kind is not None
        settings = Settings(recipe.clean, recipe.transport, self.batches.dataset.std)
        return mix_by_saliency(self.net, mix, kind, draws, settings)


def parts_of(part: slice, recipe: Recipe) -> list[slice]:
    """Divide a part of the batch into those of gradient accumulation."""
    first = part.start or 0
    last = recipe.batch_size if part.stop is None else part.stop
    each = (last - first) // recipe.grad_accum_steps
    return [slice(start, start + each) for start in range(first, last, each)]


def unsynchronised(model: nn.Module) -> AbstractContextManager[None]:
    """Add up gradients on this process only, if the model averages them over several."""
    return model.no_sync() if isinstance(model, DistributedDataParallel) else nullcontext()


def class_weights(batches: Batches) -> Tensor:
    """Return the weight of each class (K,), inverse to its share of the training images; 1 on average over these."""
    labels = batches.split.labels
    count_K = labels.bincount(minlength=len(batches.dataset.classes))
    return len(labels) / (len(count_K) * count_K.clamp_min(1)).float()


def accuracy(logits: Tensor, mix: Mix) -> Tensor:
    """Return the share of heads that predict the (largest) label of their own mixed input."""
    truth = mix.targets if mix.targets.dim() == 2 else mix.targets.argmax(-1)
    return (logits.argmax(-1) == truth).float().mean()


class NotCaptured(Exception):  # noqa: N818 - not an error: there is another way
    """The function could not be recorded; nothing on the device has changed."""


class Graph:
    """A function of Draws, recorded once as a CUDA graph and then replayed: one launch per step.

    The first calls run the function itself, so that all that is kept gets allocated; recording computes nothing.
    """

    WARMUP = 3

    def __init__(self, run: Callable[[Draws], None]) -> None:
        self.run = run
        self.calls = 0
        self.stream = torch.cuda.Stream()
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, draws: Draws) -> None:
        self.calls += 1
        if self.calls <= self.WARMUP:
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):
                self.run(draws)
            torch.cuda.current_stream().wait_stream(self.stream)
            return
        if self.graph is None:
            self.inputs = tree_map_only(Tensor, torch.clone, draws)
            self.graph = self.record()
        for into, values in zip(by_type(self.inputs), by_type(draws), strict=True):
            torch._foreach_copy_(into, values)  # in stream order, so not before the last replay has read them
        self.graph.replay()

    def record(self) -> torch.cuda.CUDAGraph:
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        try:
            # Other threads may go on allocating (thread_local): their work is not part of the recording.
            with torch.cuda.graph(graph, stream=self.stream, capture_error_mode="thread_local"):
                self.run(self.inputs)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            torch.cuda.set_stream(stream)  # torch leaves its own stream current when the end of a capture fails
            raise NotCaptured(summary(error.__context__ or error)) from error
        return graph


def by_type(draws: Draws) -> tuple[list[Tensor], list[Tensor]]:
    """Return the uniform numbers and the indices: tensors of one type are copied in one launch."""
    leaves = [leaf for leaf in tree_leaves(draws) if isinstance(leaf, Tensor)]
    return [x for x in leaves if x.is_floating_point()], [x for x in leaves if not x.is_floating_point()]


def summary(error: BaseException) -> str:
    return f"{type(error).__name__}: {first_line(error)}"


def warn(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=3)
