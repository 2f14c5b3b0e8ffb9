"""Make a torchvision built for CUDA importable beside a PyTorch without CUDA; timm, torchmetrics, lightning import it.

Its import fails at two operators that it cannot load, and passes where they are declared without an implementation.
"""

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

MODULE = "torchvision._meta_registrations"  # imported after torchvision has tried to load its operators, and needs them


class _Finder:
    """Declares the missing operators just before torchvision needs them."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        if name != MODULE:
            return None
        declare_missing()
        sys.meta_path.remove(self)
        return PathFinder.find_spec(name, path, target)  # returned here: the import system iterates over sys.meta_path


def install() -> None:
    if MODULE not in sys.modules:
        sys.meta_path.insert(0, _Finder())


def declare_missing() -> None:
    """Declare the operators that torchvision could not load, if PyTorch has no CUDA."""
    import torch

    if torch.version.cuda is None:
        for name in ("nms", "qnms"):
            if not hasattr(torch.ops.torchvision, name):
                torch.library.define(f"torchvision::{name}", "(Tensor boxes, Tensor scores, float threshold) -> Tensor")
