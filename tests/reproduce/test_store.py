"""Where runs are kept and found."""

from pathlib import Path

import pytest

from mixmo.recipes import METHODS, named
from mixmo.reproduce.store import Store, group_name, run_name
from mixmo.runs.directory import Run

VANILLA = named("digits/vanilla")


def finish(run: Run, *files: str) -> Path:
    for name in ("scores.json", *files):
        run.write(name, "{}")
    return run.path


def test_a_run_goes_on_where_it_was_begun(tmp_path: Path) -> None:
    """Below OUT, whatever the folder is called; one that lies elsewhere is read and not written to."""
    Run.create(tmp_path / "elsewhere" / "a", VANILLA)
    assert Store(tmp_path / "out", [tmp_path / "elsewhere"]).folder(VANILLA) == tmp_path / "out/runs" / run_name(
        VANILLA
    )
    Run.create(tmp_path / "out" / "runs" / "mine", VANILLA)
    store = Store(tmp_path / "out", [tmp_path / "elsewhere"])
    assert store.folder(VANILLA) == tmp_path / "out" / "runs" / "mine"
    assert not store.begun(VANILLA)
    (tmp_path / "out" / "runs" / "mine" / "checkpoints").mkdir()
    assert store.begun(VANILLA)


def test_the_run_that_has_the_files(tmp_path: Path) -> None:
    """Of several of one recipe, one with all that is needed, its own or from elsewhere; never one without scores.

    Weights in shards are there too.
    """
    poor = finish(Run.create(tmp_path / "out" / "runs" / "poor", VANILLA))
    rich = finish(
        Run.create(tmp_path / "elsewhere" / "rich", VANILLA), "logits-last.safetensors", "last.safetensors.index.json"
    )
    begun = Run.create(tmp_path / "elsewhere" / "begun", VANILLA.replace(seed=1))
    begun.write("logits-last.safetensors", "")
    store = Store(tmp_path / "out", [tmp_path / "elsewhere"])
    names = ("scores.json", "logits-last.safetensors", "last.safetensors", "best.safetensors")
    found = [store.find(VANILLA, [name]) for name in names]
    assert [run and run.path for run in found] == [poor, rich, rich, None]
    assert store.find(begun.recipe, ["logits-last.safetensors"]) is None
    assert store.finished() == [VANILLA]


def test_what_was_trained_after_the_store_was_opened_is_found(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert store.find(VANILLA) is None
    finish(Run.create(store.folder(VANILLA), VANILLA))
    run = store.find(VANILLA)
    assert run is not None
    assert run.path == store.folder(VANILLA)


@pytest.mark.parametrize("method", [name for name in METHODS if named(f"cifar100/{name}").networks == 1])
def test_a_run_is_called_by_its_method_whatever_its_size(method: str) -> None:
    """Its width, seed, repetition, epochs, batch and precision say nothing about it: batch augmentation is b = 10."""
    recipe, method = named(f"cifar100/{method}"), method.removesuffix("-ba")
    assert run_name(recipe).startswith(f"cifar100-{method}-w10-b{recipe.repetition}-s0-")
    sized = recipe.replace(width=4, seed=2, epochs=20, batch_size=640, precision="bf16")
    assert run_name(sized).startswith(f"cifar100-{method}-w4-b{recipe.repetition}-s2-")
    assert run_name(recipe.replace(dataset="folder:x")).startswith(f"x-{method}-w10-")


def test_an_ensemble_has_a_name_whatever_the_order_of_its_runs(tmp_path: Path) -> None:
    pair, third = (VANILLA, VANILLA.replace(seed=1)), VANILLA.replace(seed=2)
    assert group_name(pair) == group_name(pair[::-1]) != group_name((VANILLA, third))
    assert group_name((VANILLA,)) == run_name(VANILLA)
    assert "-x3-" in group_name((*pair, third))
    Store(tmp_path / "a").keep(pair, "scores.json", {"kept": 1})
    assert Store(tmp_path / "b", [tmp_path / "a"]).derived(pair[::-1], "scores.json") == {"kept": 1}
    assert Store(tmp_path / "b", [tmp_path / "a"]).derived(pair[:1], "scores.json") is None
