"""Read third-party files of pretrained weights safely, and match them to a model by name and shape."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from mixmo.storage.torch_files import check_torch_file
from mixmo.storage.weights import load_state, mismatches, shapes
from mixmo.utils.errors import UserError, check_path, check_readable, first_line

KEYS = ("state_dict", "model", "model_state", "model_ema")  # under which training scripts store a state dict
PREFIXES = ("module.", "_orig_mod.", "backbone.", "model.")  # of data parallel, compiled and held models
COUNTERS = "num_batches_tracked"  # missing in older files, and not needed
NAMED = 3  # tensors in an error message


def read_weights(path: Path | str, wanted: Collection[str]) -> dict[str, Tensor]:
    """Return the tensors of a file under the names that the model has (`wanted`) where they only differ by a prefix."""
    path = check_path("weights", path)
    check_readable(path)
    if not path.is_file():
        raise UserError(f"weights = {path} is not a file; give a safetensors file, or a state dict of torch.save")
    try:
        read = _read_safetensors if path.suffix == ".safetensors" else _read_pickle
        content = read(path)
    except Exception as error:  # a damaged file can raise nearly anything
        give = "a safetensors file, or a state dict of torch.save"
        raise UserError(f"weights = {path} cannot be read safely ({first_line(error)}); give {give}") from error
    state = _state(content)
    if not state or not all(isinstance(k, str) and isinstance(v, Tensor) for k, v in state.items()):
        raise UserError(f"weights = {path} holds no state dict; save model.state_dict() by torch.save")
    if any(".copies." in name for name in state):
        raise UserError(f"weights = {path} belongs to a mixmo network; give its run or folder by start (--start)")
    return _without_prefix(state, wanted)


def fill(model: nn.Module, state: Mapping[str, Tensor]) -> dict[str, str]:
    """Load the tensors that fit; return a phrase for each other tensor, by its name."""
    found = mismatches(shapes(model), {name: tensor.shape for name, tensor in state.items()})
    fitting = {name: tensor for name, tensor in state.items() if name not in found}
    load_state(model, fitting)
    return {name: phrase for name, phrase in found.items() if not name.endswith(COUNTERS)}


def check_filled(
    misfits: Mapping[str, str], heads: Collection[str], wanted: Collection[str], given: Collection[str]
) -> None:
    """Raise an error unless only heads, or the weights in them, did not fit: those of other classes are new.

    Args:
        misfits: What `fill` returned.
        heads: Names of the heads, or of their weights.
        wanted: Names of the model's tensors.
        given: Names of the tensors that it was filled with.
    """
    new = tuple(f"{head}." for head in heads)
    others = {name: phrase for name, phrase in misfits.items() if not f"{name}.".startswith(new)}
    if others:
        more = f"; and {len(others) - NAMED} more" if len(others) > NAMED else ""
        kinds = {
            "missing": len(others.keys() - set(given)),
            "unexpected": len(others.keys() - set(wanted)),
            "of another shape": len(others.keys() & set(given) & set(wanted)),
        }
        counts = ", ".join(f"{count} {kind}" for kind, count in kinds.items() if count)
        problem = f"the weights do not fit the model's {len(wanted)} tensors: {counts}"
        raise UserError(f"{problem} ({'; '.join([*others.values()][:NAMED])}{more}); give the weights of this model")


def _read_safetensors(path: Path) -> Any:
    try:
        return safetensors.torch.load_file(path)
    except safetensors.SafetensorError as error:
        raise ValueError(str(error)) from error


def _read_pickle(path: Path) -> Any:
    check_torch_file(path)
    return torch.load(path, map_location="cpu", weights_only=True)  # tensors and numbers: no code is run


def _state(content: Any) -> dict[str, Any]:
    """Return the state dict in what a training script saved."""
    for _ in KEYS:  # not for ever: a dict may hold itself
        if isinstance(content, Mapping):
            content = next((content[key] for key in KEYS if isinstance(content.get(key), Mapping)), content)
    return dict(content) if isinstance(content, Mapping) else {}


def _without_prefix(state: dict[str, Tensor], wanted: Collection[str]) -> dict[str, Tensor]:
    while not state.keys() & set(wanted):
        prefix = next((prefix for prefix in PREFIXES if all(name.startswith(prefix) for name in state)), None)
        if prefix is None:
            break
        state = {name.removeprefix(prefix): tensor for name, tensor in state.items()}
    return state
