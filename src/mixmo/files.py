"""Files that are whole or not there at all, and tensors in them: safetensors, in shards if asked for."""

import errno
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import safetensors.torch
from huggingface_hub import split_torch_state_dict_into_shards
from torch import Tensor

from mixmo.errors import UserError

REMEDIES = {  # for what cannot be written
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free some space"),
    errno.EFBIG: "allow larger files (`ulimit -f`) or give --shard_mb",
    errno.ENOENT: "put back its folder, which was removed or moved",
    errno.EACCES: "make its folder writable",
    errno.EROFS: "make its disk writable",
}
UNFINISHED = "the training has not ended; continue it with --resume"
AGAIN = "if it is of a run, remove scores.json there and train with --resume, which writes it again"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary neighbour that takes the place of `path` when all went well, and is removed when not."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise unwritten(path, error) from error
    finally:
        with suppress(OSError):  # of a disk that refuses that too: what went wrong first is what to say
            temporary.unlink(missing_ok=True)


def unwritten(path: Path, error: OSError) -> UserError:
    """What to do depends on why."""
    remedy = REMEDIES.get(error.errno or 0, "check that disk")
    return UserError(
        f"{path} could not be written ({error.strerror}); what was there before is intact: {remedy}, "
        f"then continue with --resume"
    )


def save_tensors(tensors: dict[str, Tensor], path: Path, shard_mb: float | None = None) -> None:
    """A safetensors file, whole or not at all.

    With `shard_mb`, files of at most that size and an index beside them, as the Hugging Face Hub has them:
    last-00001-of-00003.safetensors, ..., last.safetensors.index.json. A tensor is never cut.
    """
    ready = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    files = {path.name: list(ready)}
    if shard_mb is not None:
        pattern, size = f"{path.stem}{{suffix}}.safetensors", max(1, int(shard_mb * 1e6))
        shards = split_torch_state_dict_into_shards(ready, filename_pattern=pattern, max_shard_size=size)
        files = shards.filename_to_tensors
    for file, names in files.items():
        with replacing(path.with_name(file)) as into:
            try:
                safetensors.torch.save_file({name: ready[name] for name in names}, into)
            except safetensors.SafetensorError as error:
                found = re.search(r"os error (\d+)", str(error))  # it has only words for it
                raise OSError(*((int(found[1]), os.strerror(int(found[1]))) if found else (0, str(error)))) from error
    if len(files) > 1:
        with replacing(index_of(path)) as into:
            index = {"metadata": shards.metadata, "weight_map": shards.tensor_to_filename}
            into.write_text(json.dumps(index, indent=1))


def load_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, whole or in shards."""
    if not path.is_file() and index_of(path).is_file():
        try:
            files = sorted(set(json.loads(index_of(path).read_text(encoding="utf-8"))["weight_map"].values()))
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise UserError(f"{index_of(path)} is damaged ({error}); restore it from where it was written") from error
        return {name: tensor for file in files for name, tensor in load_tensors(path.with_name(file)).items()}
    if not path.is_file():
        beside = {name for name in ("recipe.yaml", "scores.json") if path.with_name(name).is_file()}
        raise UserError(f"{path} is missing" + (f": {UNFINISHED}" if beside == {"recipe.yaml"} else f"; {AGAIN}"))
    try:
        tensors: dict[str, Tensor] = safetensors.torch.load_file(path)
        return tensors
    except safetensors.SafetensorError as error:
        raise UserError(f"{path} is damaged ({error}); {AGAIN}") from error


def index_of(path: Path) -> Path:
    """Which shards hold the tensors of `path`."""
    return path.with_name(f"{path.name}.index.json")


def halve(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Half the size: matrices and filters in bfloat16. Vectors stay: they are few, and batch statistics need digits."""
    return {name: t.bfloat16() if t.dim() > 1 and t.is_floating_point() else t for name, t in tensors.items()}
