"""The optimiser of a recipe: parameter groups by layer, SGD or AdamW, loss scaling."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from mixmo.engine.nonfinite import skip_flag
from mixmo.models import Ensemble
from mixmo.recipes.schema import Recipe
from mixmo.surgery.wrapped import Wrapped

CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
EMBEDDINGS = (
    "pos_embedding",
    "class_token",
    "relative_position_bias_table",
)  # torchvision's; timm's models name theirs


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
    depths, undecayed = layer_depths(net), embeddings(net)
    last, (stems, heads) = max(depths.values()), end_names(net)
    groups: dict[tuple[float, float], list[Tensor]] = defaultdict(list)
    for name, parameter in net.named_parameters():
        own = name.startswith(heads) or (net.members > 1 and name.startswith(stems))
        scale = recipe.head_lr if own else recipe.layer_decay ** (last - depths[name])
        vector = parameter.ndim < 2 or name.endswith(".bias") or name in undecayed
        groups[scale, recipe.weight_decay if recipe.decay_norms or not vector else 0.0].append(parameter)
    return [{"params": some, "lr_scale": scale, "weight_decay": decay} for (scale, decay), some in groups.items()]


def end_names(net: Ensemble) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the prefixes of the names of parameters in stems, and in heads."""
    if isinstance(net, Wrapped):
        return tuple(f"backbone.{name}." for name in net.stems), tuple(f"backbone.{name}." for name in net.heads)
    return ("encoders.",), ("heads.",)


def embeddings(net: Ensemble) -> set[str]:
    """Return the names of position embeddings and tokens, which are not decayed either; models may name their own."""
    backbone: Any = getattr(net, "backbone", None)
    own = backbone.no_weight_decay() if hasattr(backbone, "no_weight_decay") else ()
    return {f"backbone.{name}" for name in own} | {n for n, _ in net.named_parameters() if n.endswith(EMBEDDINGS)}


def layer_depths(net: Ensemble) -> dict[str, int]:
    """Return the depth of each parameter: 0 in the stems, then one more per block, the most in the heads.

    timm's models know their blocks; those of others are found.
    """
    backbone: Any = getattr(net, "backbone", None)
    if hasattr(backbone, "group_matcher"):
        from timm.models import group_parameters

        found = group_parameters(backbone, backbone.group_matcher(coarse=False), reverse=True)
        return {f"backbone.{name}": depth for name, depth in found.items()}
    prefix = "backbone." if backbone is not None else "core."
    (stems, heads), depth, by_block = end_names(net), 0, {}
    for name, is_block in blocks(net.get_submodule(prefix[:-1]), prefix):
        depth += is_block and not any(end.startswith(f"{name}.") for end in (*stems, *heads))
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

    Containers are looked into, and modules that hold a container of two or more blocks of one class, such as stages.
    """
    for name, child in module.named_children():
        if not any(True for _ in child.parameters()):
            continue
        if isinstance(child, CONTAINERS) or _holds_blocks(child):
            yield from blocks(child, f"{prefix}{name}.")
        else:
            yield prefix + name, _has_layers(child)


def _has_layers(module: nn.Module) -> bool:
    """Return whether it has layers with weights within it, as a block; a layer may have others, as of an activation."""
    return any(any(True for _ in child.parameters()) for child in module.children())


def _holds_blocks(module: nn.Module) -> bool:
    for child in module.children():
        if isinstance(child, CONTAINERS):
            kinds = [type(part) for part in child.children() if _has_layers(part)]
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
