"""Tensors are saved whole or in shards, and read back equal; damaged or missing files are named."""

import json
import os
from pathlib import Path

import pytest
import safetensors.torch
import torch

from mixmo import UserError
from mixmo.storage.weights import load_tensors, save_tensors, to_bfloat16


def test_shards_of_an_earlier_save_are_removed(tmp_path: Path) -> None:
    path, tensors = tmp_path / "x.safetensors", {str(i): torch.full((1000,), float(i)) for i in range(4)}
    (tmp_path / "x-mine.safetensors").touch()
    for shard_mb, count in ((None, 1), (0.005, 5), (0.009, 3), (None, 1)):
        save_tensors(tensors, path, shard_mb)
        assert len(list(tmp_path.iterdir())) == 1 + count
        assert all(torch.equal(tensor, tensors[name]) for name, tensor in load_tensors(path).items())


def test_shards_are_bounded_and_read_back_equal(tmp_path: Path) -> None:
    tensors = {f"layer.{i}": torch.randn(100, 50, generator=torch.Generator().manual_seed(i)) for i in range(9)}
    save_tensors(tensors, tmp_path / "weights.safetensors", shard_mb=0.05)
    shards = sorted(tmp_path.glob("weights-*.safetensors"))
    assert len(shards) == 5
    assert all(path.stat().st_size < 51_000 for path in shards)
    again = load_tensors(tmp_path / "weights.safetensors")
    assert again.keys() == tensors.keys()
    assert all(torch.equal(again[name], tensors[name]) for name in tensors)
    shards[2].unlink()
    with pytest.raises(UserError, match=r"weights-00003-of-00005.safetensors is missing"):
        load_tensors(tmp_path / "weights.safetensors")


def test_bfloat16_keeps_integers_and_vectors() -> None:
    tensors = {"w": torch.randn(2, 2), "b": torch.randn(2), "n": torch.tensor([[3]])}
    assert [t.dtype for t in to_bfloat16(tensors).values()] == [torch.bfloat16, torch.float32, torch.int64]


@pytest.mark.parametrize(
    "text", [*(json.dumps({"weight_map": {"w": name}}) for name in ("../x.safetensors", "recipe.yaml", 5)), "{}", "[]"]
)
def test_index_that_names_no_file_beside_it_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.safetensors.index.json").write_text(text)
    with pytest.raises(UserError, match=r"a.safetensors.index.json is damaged"):
        load_tensors(tmp_path / "a.safetensors")


def test_missing_shard_is_named(tmp_path: Path) -> None:
    for name in ("a.safetensors", "gone.safetensors"):  # the first is what the index stands for
        (tmp_path / "a.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": name}}))
        with pytest.raises(UserError, match=f"{name} is missing"):
            load_tensors(tmp_path / "a.safetensors")
    safetensors.torch.save_file({"w": torch.zeros(2)}, tmp_path / "a.safetensors")
    assert load_tensors(tmp_path / "a.safetensors").keys() == {"w"}  # needs no index


@pytest.mark.skipif(os.name != "posix", reason="permissions")
def test_saved_tensors_have_the_permissions_of_other_files(tmp_path: Path) -> None:
    save_tensors({"a": torch.zeros(2)}, tmp_path / "a.safetensors")
    (tmp_path / "b").touch()
    assert (tmp_path / "a.safetensors").stat().st_mode == (tmp_path / "b").stat().st_mode


def test_saving_into_a_removed_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"x.safetensors could not be written \(No such file or directory\)"):
        save_tensors({"a": torch.zeros(2)}, tmp_path / "gone" / "x.safetensors")


def test_full_disk_while_saving_is_an_error_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise safetensors.SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(safetensors.torch, "save_file", fail)
    with pytest.raises(UserError, match=r"x.safetensors could not be written \(No space left on device\)"):
        save_tensors({"a": torch.zeros(2)}, tmp_path / "x.safetensors")
    assert not list(tmp_path.iterdir())
