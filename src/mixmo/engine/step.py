"""One optimisation step, wholly on the device: batch, forward, backward, SGD. Nothing here waits for the device."""

from collections.abc import Callable

import torch
from torch import Tensor

from mixmo.engine.batch import Batches, Draws
from mixmo.loss import loss
from mixmo.models import Network
from mixmo.types import Mix


class Step:
    """Calls of `step(draws, lr, chance)`; losses add up on the device until `read`.

    `compiled` fuses the batch, the network and the loss into few kernels; `graphed` records the whole step as a CUDA
    graph, which small batches need to keep the device busy.
    """

    def __init__(
        self,
        net: Network,
        optimizer: torch.optim.Optimizer,
        batches: Batches,
        *,
        precision: str,
        compiled: bool,
        graphed: bool,
    ) -> None:
        self.net, self.optimizer, self.batches = net, optimizer, batches
        self.precision = precision
        device = batches.split.images.device
        self.device = device
        self.lr = torch.zeros((), device=device)
        self.chance = torch.zeros((), device=device)
        self.meter = torch.zeros(2, device=device, dtype=torch.float64)  # sums over steps: loss, heads' accuracy
        self._forward: Callable[[Draws], tuple[Tensor, Tensor]] = self._forward_eagerly
        if compiled:
            self._forward = torch.compile(self._forward_eagerly, dynamic=False)
        self._graph = Graph(self._run) if graphed else None
        for group in optimizer.param_groups:
            group["lr"] = self.lr

    def __call__(self, draws: Draws, lr: float, chance: float) -> None:
        self.lr.fill_(lr)
        self.chance.fill_(chance)
        if self._graph is not None:
            self._graph(draws)
        else:
            self._run(draws)

    def _run(self, draws: Draws) -> None:
        value, accuracy = self._forward(draws)
        self.optimizer.zero_grad(set_to_none=True)
        value.backward()
        self.optimizer.step()
        self.meter += torch.stack((value.detach(), accuracy)).double()

    def _forward_eagerly(self, draws: Draws) -> tuple[Tensor, Tensor]:
        mix = self.batches.mix(draws, self.chance)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16"):
            logits = self.net(mix)
        return loss(logits, mix), accuracy(logits.detach(), mix)


def accuracy(logits: Tensor, mix: Mix) -> Tensor:
    """Share of heads that give the (largest) label of their own mixed input."""
    truth = mix.targets if mix.targets.dim() == 2 else mix.targets.argmax(-1)
    return (logits.argmax(-1) == truth).float().mean()


class Graph:
    """A function of Draws recorded once as a CUDA graph and then replayed: the host launches one thing a step."""

    WARMUP = 3

    def __init__(self, run: Callable[[Draws], None]) -> None:
        self.run = run
        self.calls = 0
        self.graph = torch.cuda.CUDAGraph()
        self.inputs: Draws | None = None

    def __call__(self, draws: Draws) -> None:
        self.calls += 1
        if self.calls <= self.WARMUP:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                self.run(draws)
            torch.cuda.current_stream().wait_stream(side)
            return
        if self.inputs is None:
            self.inputs = torch.utils._pytree.tree_map(torch.clone, draws)
            assert self.inputs is not None
            with torch.cuda.graph(self.graph):
                self.run(self.inputs)
        torch.utils._pytree.tree_map(lambda into, value: into.copy_(value), self.inputs, draws)
        self.graph.replay()
