"""Files that are whole or not there at all, and tensors in them: safetensors, in shards if asked for."""

import errno
import json
import os
import re
import secrets
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import safetensors.torch
from huggingface_hub import split_torch_state_dict_into_shards
from torch import Tensor

from mixmo.storage import checksums
from mixmo.utils.errors import UserError

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
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")  # not by process: containers share numbers
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise unwritten(path, error) from error
    finally:
        with suppress(OSError):  # it has its place, or the disk refuses that too: what failed first is what to say
            temporary.unlink()


def unwritten(path: Path, error: OSError) -> UserError:
    """What to do depends on why."""
    remedy = REMEDIES.get(error.errno or 0, "check that disk")
    return UserError(
        f"{path} could not be written ({error.strerror}); what was there before is intact: {remedy}, "
        f"then give the command again, a training with --resume"
    )


@contextmanager
def locked(path: Path, busy: str) -> Iterator[None]:
    """Hold the lock of the file `path`, or say that it is `busy`. The system frees it however the process ends.

    The file is there as long as the lock is held, or after its process was killed.
    """
    if sys.platform == "win32":
        yield
        return
    import fcntl

    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(busy) from error
        except OSError:  # a file system without locks: better to work unguarded than not at all
            pass
        if not _is(path, file):
            raise UserError(busy)  # removed by its holder since we opened it: a third process may hold a new one
        try:
            yield
        finally:
            with suppress(OSError):
                if _is(path, file):  # a folder may have been cleared, and another process begun to work there
                    path.unlink()


def _is(path: Path, file: IO[str]) -> bool:
    """Whether this open file is what lies there."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


@contextmanager
def drafts(path: Path) -> Iterator[Path]:
    """A folder beside `path` for what is not finished; what the file system refuses is said in a sentence.

    One process at a time has it, so what is found there is of one that was killed, and goes.
    """
    folder, lock = (path.parent / f".{path.name}.{kind}" for kind in ("draft", "lock"))
    busy = f"{path} is being written by another process; wait for it, or name another place"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(lock, busy):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            try:
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)
    except (OSError, UserError) as error:
        refused = error if isinstance(error, OSError) else error.__cause__
        if not isinstance(refused, OSError) or isinstance(refused, BlockingIOError):
            raise
        raise UserError(
            f"{path} cannot be written ({refused.strerror or refused}); make room, or name another place"
        ) from error


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
            into.touch()
            mode = into.stat().st_mode
            try:
                safetensors.torch.save_file({name: ready[name] for name in names}, into)
                into.chmod(mode)  # as all files here have it: safetensors lets nobody but their owner read them
            except safetensors.SafetensorError as error:
                found = re.search(r"os error (\d+)", str(error))  # it has only words for it
                raise OSError(*((int(found[1]), os.strerror(int(found[1]))) if found else (0, str(error)))) from error
    written = {path.with_name(file) for file in files}
    if len(files) > 1:
        with replacing(index_of(path)) as into:
            index = {"metadata": shards.metadata, "weight_map": shards.tensor_to_filename}
            into.write_text(json.dumps(index, indent=1))
        written.add(index_of(path))
    # Those of an earlier writing in another number of files would be read instead, or for nothing be kept.
    for left in {path, index_of(path), *path.parent.glob(f"{path.stem}-?????-of-?????.safetensors")} - written:
        left.unlink(missing_ok=True)


def load_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, whole or in shards, if they are as the sums beside it say."""
    if path.is_file() or not index_of(path).is_file():
        return _load_file(path)
    return {name: tensor for file in _shards(index_of(path)) for name, tensor in _load_file(file).items()}


def _shards(index: Path) -> list[Path]:
    """The files that an index names, which lie beside it."""
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        if wrong := [name for name in names if Path(name).name != name or Path(name).suffix != ".safetensors"]:
            raise ValueError(f"it names {wrong[0]!r}, which is no safetensors file beside it")
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise UserError(f"{index} is damaged ({error}); restore it from where it was written") from error
    checksums.check(index)
    return [index.with_name(name) for name in names]


def _load_file(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        beside = {name for name in ("recipe.yaml", "scores.json") if path.with_name(name).is_file()}
        raise UserError(f"{path} is missing" + (f": {UNFINISHED}" if beside == {"recipe.yaml"} else f"; {AGAIN}"))
    try:
        path.open("rb").close()  # safetensors calls missing what it may not read
        tensors: dict[str, Tensor] = safetensors.torch.load_file(path)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror or error}); make it readable") from error
    except safetensors.SafetensorError as error:
        raise UserError(f"{path} is damaged ({error}); {AGAIN}") from error
    checksums.check(path)
    return tensors


def index_of(path: Path) -> Path:
    """Which shards hold the tensors of `path`."""
    return path.with_name(f"{path.name}.index.json")


def halve(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Half the size: matrices and filters in bfloat16. Vectors stay: they are few, and batch statistics need digits."""
    return {name: t.bfloat16() if t.dim() > 1 and t.is_floating_point() else t for name, t in tensors.items()}
