"""The optimiser of a recipe: parameter groups by layer, SGD or AdamW, loss scaling."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from mixmo.engine.nonfinite import skip_flag
from mixmo.models import Ensemble, Network
from mixmo.recipes.schema import Recipe
from mixmo.surgery.wrapped import Wrapped

CONTAINERS = (nn.Sequential, nn.ModuleList)


def make_optimizer(net: Ensemble, recipe: Recipe, fused: bool = True) -> torch.optim.Optimizer:
    """Return the optimiser. `group["lr_scale"]` is what each group multiplies the learning rate by."""
    groups = parameter_groups(net, recipe)
    on_gpu = next(net.parameters()).device.type == "cuda"
    if recipe.optimizer == "adamw":
        betas = (recipe.momentum, recipe.beta2)
        return torch.optim.AdamW(groups, lr=recipe.rate, betas=betas, fused=fused, capturable=on_gpu)
    momentum, nesterov = recipe.momentum, recipe.momentum > 0
    return torch.optim.SGD(groups, lr=recipe.rate, momentum=momentum, nesterov=nesterov, fused=fused)


def parameter_groups(net: Ensemble, recipe: Recipe) -> list[dict[str, Any]]:
    """Group the parameters by weight decay and by the factor of their learning rate.

    The factor is layer_decay^(L - depth). It is head_lr for the heads, and for the stems of several members, which have
    to become diverse.
    """
    depths = layer_depths(net)
    last, (stems, heads) = max(depths.values()), end_names(net)
    groups: dict[tuple[float, float], list[Tensor]] = defaultdict(list)
    for name, parameter in net.named_parameters():
        own = name.startswith(heads) or (net.members > 1 and name.startswith(stems))
        scale = recipe.head_lr if own else recipe.layer_decay ** (last - depths[name])
        vector = parameter.ndim < 2 or name.endswith((".bias", "pos_embed", "cls_token", "pos_embedding"))
        groups[scale, recipe.weight_decay if recipe.decay_norms or not vector else 0.0].append(parameter)
    return [{"params": some, "lr_scale": scale, "weight_decay": decay} for (scale, decay), some in groups.items()]


def end_names(net: Ensemble) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the prefixes of the names of parameters in stems, and in heads."""
    if isinstance(net, Wrapped):
        return tuple(f"backbone.{name}." for name in net.stems), tuple(f"backbone.{name}." for name in net.heads)
    return ("encoders.",), ("heads.",)


def layer_depths(net: Ensemble) -> dict[str, int]:
    """Return the depth of each parameter: 0 in the stems, then one more per block, the most in the heads."""
    stems, heads = end_names(net)
    core, prefix = (net.core, "core.") if isinstance(net, Network) else (net, "")
    depth, by_block = 0, {}
    for name, is_block in blocks(core, prefix):
        depth += is_block
        by_block[name] = depth
    depths = {}
    for name, _ in net.named_parameters():
        owner = max((block for block in by_block if name.startswith(f"{block}.")), key=len, default=None)
        depths[name] = by_block[owner] if owner else 0
        if name.startswith(stems):
            depths[name] = 0
        elif name.startswith(heads):
            depths[name] = depth + 1
    return depths


def blocks(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, bool]]:
    """Yield the names of the residual or transformer blocks, in order, and of layers between them (False).

    Sequences are looked into, and modules that hold a sequence of two or more blocks of one class, such as stages.
    """
    for name, child in module.named_children():
        if not any(True for _ in child.parameters()):
            continue
        if isinstance(child, CONTAINERS) or _holds_blocks(child):
            yield from blocks(child, f"{prefix}{name}.")
        else:
            yield prefix + name, any(True for _ in child.children())


def _holds_blocks(module: nn.Module) -> bool:
    for child in module.children():
        if isinstance(child, CONTAINERS):
            kinds = [type(part) for part in child if any(True for _ in part.children())]
            if any(not issubclass(kind, CONTAINERS) and kinds.count(kind) > 1 for kind in kinds):
                return True
        if _holds_blocks(child):
            return True
    return False


class LossScaler:
    """Dynamic loss scaling for fp16 (as torch.amp.GradScaler), all on the device: a step that overflows is skipped."""

    GROWTH, BACKOFF, INTERVAL = 2.0, 0.5, 2000

    def __init__(self, optimizer: torch.optim.Optimizer, device: torch.device) -> None:
        self.scale = torch.full((), 2.0**16, device=device)
        self.growth = torch.zeros((), device=device, dtype=torch.int32)
        self.found_inf = skip_flag(optimizer, device)

    def unscale(self, gradients: list[Tensor]) -> None:
        self.found_inf.zero_()
        torch._amp_foreach_non_finite_check_and_unscale_(gradients, self.found_inf, self.scale.reciprocal())

    def update(self) -> None:
        torch._amp_update_scale_(self.scale, self.growth, self.found_inf, self.GROWTH, self.BACKOFF, self.INTERVAL)

    def state(self) -> tuple[float, int]:
        """Return scale and steps since it last grew, for a checkpoint."""
        return self.scale.item(), int(self.growth.item())

    def load(self, state: tuple[float, int]) -> None:
        self.scale.fill_(state[0])
        self.growth.fill_(state[1])
