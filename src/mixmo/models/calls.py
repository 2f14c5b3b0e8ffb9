"""The calls of a network's layers in a forward pass: inputs and outputs."""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn


class Call(NamedTuple):
    """One call of a layer."""

    name: str
    input: Tensor
    output: Tensor


def calls(
    model: nn.Module, layers: Mapping[str, nn.Module], images: Tensor, cut: Collection[str] = ()
) -> tuple[Any, list[Call]]:
    """The model's output and the calls of `layers` in order; no gradient flows through outputs of those in `cut`."""
    seen: list[Call] = []

    def note(name: str, stop: bool) -> Any:
        def hook(_: nn.Module, inputs: tuple[Any, ...], output: Any) -> Any:
            if isinstance(output, Tensor) and inputs and isinstance(inputs[0], Tensor):
                seen.append(Call(name, inputs[0], output.clone()))  # an activation may overwrite it
                return output.detach() if stop else output
            return output

        return hook

    handles = [layer.register_forward_hook(note(name, name in cut)) for name, layer in layers.items()]
    try:
        return model(images), seen
    finally:
        for handle in handles:
            handle.remove()
