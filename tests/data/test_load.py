"""Every registered data set, the data directory, and the device."""

from pathlib import Path

import pytest
import torch

from mixmo.data import DATASETS, load
from mixmo.utils.errors import UserError

NEED_FILES = [name for name in DATASETS if name != "digits"]


def test_the_published_data_sets_are_registered():
    assert {"digits", "cifar10", "cifar100"} <= set(DATASETS)


@pytest.mark.parametrize("name", list(DATASETS))
def test_first_line_of_the_docstring_is_the_description(name: str):
    line = (DATASETS[name].__doc__ or "").splitlines()[0]
    assert 30 < len(line) < 130
    assert "classes" in line


@pytest.mark.parametrize("name", list(DATASETS))
def test_every_data_set_has_the_documented_types_and_shapes(name: str):
    """Those that need files are tested if MIXMO_DATA has them."""
    try:
        dataset = load(name)
    except UserError as error:
        pytest.skip(str(error))
    assert dataset.name == name
    for split in (dataset.train, dataset.test):
        assert split.images.dtype == torch.uint8
        assert split.images.ndim == 4
        assert split.images.is_contiguous()
        assert split.images.shape[-1] == len(dataset.mean) == len(dataset.std)
        assert split.labels.dtype == torch.int64
        assert len(split.labels) == len(split.images)
        assert split.labels.unique().tolist() == list(range(len(dataset.classes)))


@pytest.mark.parametrize("name", NEED_FILES)
def test_a_missing_folder_names_its_path_and_the_command_that_gets_it(name: str, tmp_path: Path):
    with pytest.raises(UserError, match="which does not exist") as caught:
        load(name, tmp_path)
    needed = str(caught.value).split(" needs ")[1].split(", which")[0]
    assert Path(needed).parent == tmp_path
    assert f"`mixmo data get {name} --to {tmp_path}`" in str(caught.value)


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(UserError, match="did you mean 'cifar10'"):
        load("cifar-10")


def test_root_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("MIXMO_DATA", str(tmp_path / "elsewhere"))
    with pytest.raises(UserError, match="elsewhere"):
        load("cifar10")
    with pytest.raises(UserError, match="given"):
        load("cifar10", tmp_path / "given")


def test_root_is_data_by_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MIXMO_DATA", raising=False)
    with pytest.raises(UserError, match="needs data/cifar-100-python, "):
        load("cifar100")


def test_root_may_be_text(tmp_path: Path):
    with pytest.raises(UserError, match="cifar-100-python, which does not exist"):
        load("cifar100", str(tmp_path))
    with pytest.raises(UserError, match="data directory"):
        load("cifar100", 3)


def test_images_and_labels_are_on_the_device():
    dataset = load("digits", device=torch.device("cpu"))
    assert dataset.train.images.device == dataset.test.labels.device == torch.device("cpu")


@pytest.mark.parametrize("val", [0.2, 1.0, -0.1])
def test_val_is_rejected_for_a_data_set_with_a_test_set(val: float):
    with pytest.raises(UserError, match="val"):
        load("digits", val=val)
