"""Checkpoints: a folder each, complete or not there at all.

`checkpoints/00001562/` holds weights.safetensors, optimizer.safetensors and state.json after 1,562 steps. It is written
under another name and renamed; only then the one before it is removed. The best weights lie beside as
`best-<step>.safetensors`, named in the state.
"""

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from mixmo.errors import UserError
from mixmo.runs import load_tensors, replacing, save_tensors, unwritten


@dataclass
class State:
    """Where a training stands, apart from weights and momentum."""

    step: int = 0  # steps done
    epochs_logged: int = 0
    meter: tuple[float, ...] = (0.0, 0.0)  # sums over the steps of the epoch under way
    best_step: int | None = None
    best_top1: float = -1.0
    seconds: float = 0.0  # spent training so far


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def latest(self) -> Path | None:
        """The newest complete checkpoint."""
        complete = [path for path in self.folder.glob("[0-9]*") if (path / "state.json").is_file()]
        return max(complete, default=None, key=lambda path: int(path.name))

    def save(
        self, state: State, net: nn.Module, optimizer: torch.optim.Optimizer, best: dict[str, Tensor] | None
    ) -> None:
        """Write a checkpoint; on failure nothing changes but an error that says so."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if best is not None and state.best_step is not None and not self.best_path(state.best_step).exists():
            with replacing(self.best_path(state.best_step)) as path:
                save_tensors(best, path)
        final = self.folder / f"{state.step:08d}"
        temporary = self.folder / f".{final.name}.tmp"
        shutil.rmtree(temporary, ignore_errors=True)
        try:
            temporary.mkdir()
            save_tensors(net.state_dict(), temporary / "weights.safetensors")
            save_tensors(momentum(net, optimizer), temporary / "optimizer.safetensors")
            (temporary / "state.json").write_text(json.dumps(asdict(state)))
            shutil.rmtree(final, ignore_errors=True)
            temporary.rename(final)
        except OSError as error:
            shutil.rmtree(temporary, ignore_errors=True)
            raise unwritten(final, error) from error
        self._prune(keep=final, best=state.best_step)

    def load(self, net: nn.Module, optimizer: torch.optim.Optimizer) -> State | None:
        """Continue from the newest checkpoint: its state, or None where there is none yet."""
        latest = self.latest()
        if latest is None:
            return None
        try:
            fields = json.loads((latest / "state.json").read_text())
            state = State(**{**fields, "meter": tuple(fields["meter"])})
            net.load_state_dict(load_tensors(latest / "weights.safetensors"))
            buffers = load_tensors(latest / "optimizer.safetensors")
            for name, parameter in net.named_parameters():
                if name in buffers:
                    # In the parameter's own memory format: the fused kernel walks both in storage order.
                    buffer = torch.empty_like(parameter, requires_grad=False).copy_(buffers[name])
                    optimizer.state[parameter]["momentum_buffer"] = buffer
        except (ValueError, TypeError, KeyError, RuntimeError) as error:
            raise UserError(
                f"the checkpoint {latest} cannot be read ({error}); remove it to use an earlier one"
            ) from error
        return state

    def best(self, state: State) -> dict[str, Tensor] | None:
        """The weights of the best epoch so far."""
        return None if state.best_step is None else load_tensors(self.best_path(state.best_step))

    def best_path(self, step: int) -> Path:
        return self.folder / f"best-{step:08d}.safetensors"

    def _prune(self, keep: Path, best: int | None) -> None:
        for path in self.folder.glob("[0-9]*"):
            if path != keep:
                shutil.rmtree(path, ignore_errors=True)
        for path in self.folder.glob("best-*.safetensors"):
            if best is None or path != self.best_path(best):
                path.unlink(missing_ok=True)


def momentum(net: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's state by parameter name."""
    buffers = {name: optimizer.state[p].get("momentum_buffer") for name, p in net.named_parameters()}
    return {name: buffer for name, buffer in buffers.items() if buffer is not None}
