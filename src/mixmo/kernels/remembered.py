"""Choices of kernels, remembered in the user's cache directory: `$XDG_CACHE_HOME/mixmo/kernels.json`.

They hold for one GPU, one version of torch, cuDNN and Triton, and the kernels as they are now. Where the file cannot be
read or written, the choices are measured again.
"""

import hashlib
import json
import os
import warnings
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import torch

from mixmo.kernels.choice import Choice, choose, cudnn_benchmark
from mixmo.kernels.shapes import Shape
from mixmo.storage.files import atomic_write
from mixmo.utils.errors import UserError, first_line
from mixmo.utils.progress import track

Key = tuple[Shape, str, torch.dtype]  # with the direction


def file() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mixmo" / "kernels.json"


def environment(device: torch.device) -> str:
    """Return what the choices depend on besides the shape."""
    import triton

    sources = b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
    kernels = hashlib.sha256(sources).hexdigest()[:16]
    name = torch.cuda.get_device_name(device)
    versions = f"torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}, Triton {triton.__version__}"
    return f"{name}, {versions}, kernels {kernels}"


def choices(keys: list[Key], device: torch.device) -> dict[Key, Choice]:
    """Recall the choices, and measure those that are missing; return none if that fails.

    What no kernel could compute is measured again the next time: there may have been too little memory.
    """
    try:
        where = environment(device)
        known = recall(where)
        missing = [key for key in keys if name_of(key) not in known]
        with cudnn_benchmark():
            measured = {name_of(key): choose(*key, device) for key in track(missing, "choosing convolution kernels")}
        if found := {name: choice for name, choice in measured.items() if choice.tile is not None}:
            remember(where, found)
    except Exception as error:  # whatever a compiler or a driver raises: cuDNN can do all of it
        reason = f"{type(error).__name__}: {first_line(error)}"
        warnings.warn(f"the Triton kernels cannot be timed ({reason}); cuDNN is used", RuntimeWarning, stacklevel=2)
        return {}
    return {key: (known | measured)[name_of(key)] for key in keys}


def recall(environment: str) -> dict[str, Choice]:
    """Return the choices of an environment, by `name_of` their key."""
    try:
        stored = json.loads(file().read_text(encoding="utf-8"))[environment]
        return {name: Choice(**fields) for name, fields in stored.items()}
    except (OSError, RuntimeError, ValueError, LookupError, TypeError, AttributeError):  # none, or damaged
        return {}


def remember(environment: str, choices: dict[str, Choice]) -> None:
    """Add choices to those of an environment."""
    with suppress(OSError, RuntimeError, UserError):
        path = file()
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            stored = dict(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            stored = {}
        stored[environment] = {name: asdict(one) for name, one in (recall(environment) | choices).items()}
        with atomic_write(path) as temporary:
            temporary.write_text(json.dumps(stored, indent=1), encoding="utf-8")


def name_of(key: Key) -> str:
    shape, direction, dtype = key
    return f"{shape}, {direction}, {str(dtype).removeprefix('torch.')}"
