"""Tensors in safetensors files, whole or in shards, and weights loaded into a network of the same architecture."""

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from huggingface_hub import split_torch_state_dict_into_shards
from torch import Tensor, nn

from mixmo.storage import checksums
from mixmo.storage.files import atomic_write
from mixmo.storage.plain_json import parse_json
from mixmo.utils.errors import UserError, check_readable, first_line
from mixmo.utils.text import printable, shortened

UNFINISHED = "the training has not ended; continue it with --resume"
AGAIN = "restore it from a copy, or, in a run with its checkpoints, remove scores.json and train with --resume"


def save_tensors(tensors: dict[str, Tensor], path: Path, shard_mb: float | None = None) -> None:
    """Write a safetensors file atomically, or files of at most `shard_mb` and an index, as on the Hugging Face Hub."""
    ready = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    files = {path.name: list(ready)}
    if shard_mb is not None:
        pattern, size = f"{path.stem}{{suffix}}.safetensors", max(1, int(shard_mb * 1e6))
        shards = split_torch_state_dict_into_shards(ready, filename_pattern=pattern, max_shard_size=size)
        files = shards.filename_to_tensors
    for file, names in files.items():
        with atomic_write(path.with_name(file)) as temporary:
            _save_file({name: ready[name] for name in names}, temporary)
    written = {path.with_name(file) for file in files}
    if len(files) > 1:
        with atomic_write(index_path(path)) as temporary:
            index = {"metadata": shards.metadata, "weight_map": shards.tensor_to_filename}
            temporary.write_text(json.dumps(index, indent=1))
        written.add(index_path(path))
    # Files of an earlier save with another number of shards would be read instead.
    for left in {path, index_path(path), *path.parent.glob(f"{path.stem}-?????-of-?????.safetensors")} - written:
        left.unlink(missing_ok=True)


def _save_file(tensors: dict[str, Tensor], path: Path) -> None:
    path.touch()
    mode = path.stat().st_mode
    try:
        safetensors.torch.save_file(tensors, path)
        path.chmod(mode)  # safetensors makes files that only their owner can read
    except safetensors.SafetensorError as error:
        found = re.search(r"os error (\d+)", str(error))
        raise OSError(*((int(found[1]), os.strerror(int(found[1]))) if found else (0, str(error)))) from error


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file, whole or in shards, verified by the checksums beside it."""
    return {name: tensor for file in _files(path) for name, tensor in _load_file(file).items()}


def stored_shapes(path: Path) -> dict[str, torch.Size]:
    """Return the shapes of the tensors in a safetensors file, whole or in shards, without reading them."""
    found = dict[str, torch.Size]()
    for file in _files(path):
        with _opened(file) as opened:
            found |= {name: torch.Size(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118
    return found


def _files(path: Path) -> list[Path]:
    """The file, or its shards where only their index is there."""
    return [path] if path.is_file() or not index_path(path).is_file() else _shards(index_path(path))


def _shards(index: Path) -> list[Path]:
    """The files that an index names, all beside it."""
    try:
        names = sorted(set(parse_json(index.read_text(encoding="utf-8"))["weight_map"].values()))
        if wrong := [name for name in names if Path(name).name != name or Path(name).suffix != ".safetensors"]:
            raise ValueError(f"{wrong[0]!r} is not a safetensors file beside it")
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise UserError(f"{index} is damaged ({first_line(error)}); restore it from where it was written") from error
    checksums.verify(index)
    return [index.with_name(name) for name in names]


def _load_file(path: Path) -> dict[str, Tensor]:
    with _opened(path) as opened:
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    checksums.verify(path)
    return tensors


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    if not path.is_file():
        unfinished = path.with_name("recipe.yaml").is_file() and not path.with_name("scores.json").is_file()
        raise UserError(f"{path} is missing" + (f": {UNFINISHED}" if unfinished else f"; {AGAIN}"))
    check_readable(path)
    try:
        path.open("rb").close()  # safetensors reports a file without read permission as missing
        with safetensors.safe_open(path, "pt") as opened:
            yield opened
    except (OSError, safetensors.SafetensorError) as error:
        reason = getattr(error, "strerror", None) or first_line(error)
        raise UserError(f"{path} is damaged or unreadable ({reason}); {AGAIN}") from error


def index_path(path: Path) -> Path:
    """Return the index of the shards of `path`."""
    return path.with_name(f"{path.name}.index.json")


def is_stored(path: Path) -> bool:
    """Return whether a file of tensors is there, whole or in shards."""
    return path.is_file() or index_path(path).is_file()


def to_bfloat16(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return matrices and filters in bfloat16; vectors stay as they are: few, and batch statistics need the digits."""
    return {name: t.bfloat16() if t.dim() > 1 and t.is_floating_point() else t for name, t in tensors.items()}


def load_weights(net: nn.Module, path: Path, assign: bool = False) -> None:
    """Load weights into a network of the same architecture; with `assign` they keep the precision of the file."""
    check_shapes(shapes(net), path)
    load_state(net, load_tensors(path), assign)


def check_shapes(wanted: Mapping[str, torch.Size], path: Path) -> None:
    """Raise an error unless a file holds tensors of these names and shapes. Only its header is read."""
    if found := differences(wanted, stored_shapes(path)):
        raise UserError(f"{path} holds the weights of another architecture: {'; '.join(found[:3])}; build that network")


def load_state(net: nn.Module, tensors: dict[str, Tensor], assign: bool = False) -> None:
    """Load all weights into a network, with the version that its state_dict has: some backbones (MNASNet) check it."""
    state = net.state_dict()
    state.update(tensors)
    net.load_state_dict(state, assign=assign)


def shapes(net: nn.Module) -> dict[str, torch.Size]:
    """Return the shape of everything in the state_dict."""
    return {name: tensor.shape for name, tensor in net.state_dict().items()}


def differences(wanted: Mapping[str, torch.Size], given: Mapping[str, torch.Size]) -> list[str]:
    """Return a phrase for each tensor that is missing, has another shape, or is unknown.

    >>> differences({"a": torch.Size([2]), "b": torch.Size([3])}, {"a": torch.Size([4]), "c": torch.Size([1])})
    ['a is (4,) there and (2,) in the network', 'b is missing there', 'c is unknown to the network']
    """
    return list(mismatches(wanted, given).values())


def mismatches(wanted: Mapping[str, torch.Size], given: Mapping[str, torch.Size]) -> dict[str, str]:
    """Return `differences` by the names of the tensors."""
    found = {}
    for name, shape in wanted.items():
        if name not in given:
            found[name] = f"{name} is missing there"
        elif given[name] != shape:
            found[name] = f"{name} is {tuple(given[name])} there and {tuple(shape)} in the network"
    others = [name for name in given if name not in wanted]
    return found | {name: f"{shortened(printable(name))} is unknown to the network" for name in others}
