"""Writing a CIFAR-C-style set: the layout, the seed, all or nothing."""

import errno
from pathlib import Path

import numpy as np
import pytest
import torch

from mixmo import data
from mixmo.data.corrupted import COMMON, EXTRA, corrupted
from mixmo.data.corruptions import corrupt, style
from mixmo.data.corruptions.style import write_style
from mixmo.data.types import Dataset, Split
from mixmo.utils.errors import UserError

TEST = 5


@pytest.fixture(autouse=True)
def cifar(monkeypatch: pytest.MonkeyPatch) -> Split:
    """Five random images take the place of CIFAR-100's test set; three are corrupted at a time."""
    images = torch.randint(0, 256, (TEST, 32, 32, 3), generator=torch.Generator().manual_seed(1)).byte()
    split = Split(images, torch.tensor([3, 1, 4, 1, 99]))
    dataset = Dataset("cifar100", split, split, tuple(str(n) for n in range(100)), (0.5,) * 3, (0.2,) * 3)
    monkeypatch.setattr(data, "load", lambda name, root, train: dataset)
    monkeypatch.setattr(style, "CHUNK", 3)
    return split


def test_what_is_written_is_read_by_corrupted(tmp_path: Path, cifar: Split):
    folder = write_style("cifar100", tmp_path / "new")
    assert folder == tmp_path / "new" / "cifar100-c-style"
    cells = corrupted(folder)
    assert [(cell.name, cell.severity) for cell in cells] == [
        (name, severity) for name in sorted(COMMON + EXTRA) for severity in range(1, 6)
    ]
    for cell in cells:
        name, severity, split = cell.name, cell.severity, cell.split
        assert split.labels.tolist() == cifar.labels.tolist()
        assert not torch.equal(split.images, cifar.images)
        if name == "brightness":
            assert torch.equal(split.images, corrupt(cifar.images, name, severity, torch.Generator()))
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_the_readme_states_that_it_is_not_cifar_c(tmp_path: Path):
    text = (write_style("cifar100", tmp_path, severities=[4], seed=7) / "README.txt").read_text()
    for phrase in (
        "This is NOT CIFAR-100-C",
        "with seed 7",
        "the 5 test images of cifar100 under 19 corruptions of severity 4.",
        f"mixmo {style.__version__}",
        "Frost is",
    ):
        assert phrase in text


def test_the_same_seed_gives_the_same_files(tmp_path: Path):
    folders = [
        write_style("cifar100", tmp_path / str(n), seed=seed, severities=[2]) for n, seed in enumerate((0, 0, 1))
    ]
    for name in COMMON + EXTRA:
        same, again, other = (np.load(folder / f"{name}.npy") for folder in folders)
        assert np.array_equal(same, again)
        if name.endswith("noise"):
            assert not np.array_equal(same, other)


def test_cells_do_not_share_random_draws():
    """Nor two parts of one: each would have the same noise as the other."""
    places = [(s, name, severity, start) for s in (0, 1) for name in COMMON for severity in (1, 2) for start in (0, 3)]
    assert len({style._generator(*place).initial_seed() for place in places}) == len(places)


def test_some_severities_are_the_same_as_among_all(tmp_path: Path):
    whole = {(c.name, c.severity): c.split.images for c in corrupted(write_style("cifar100", tmp_path / "all"))}
    some = corrupted(write_style("cifar100", tmp_path / "some", severities=[5, 2, 5]))
    assert len(some) == 2 * 19
    assert {cell.severity for cell in some} == {2, 5}
    for cell in some:
        assert torch.equal(cell.split.images, whole[cell.name, cell.severity])


def test_images_of_a_chunk_and_corruptions_draw_differently(tmp_path: Path, cifar: Split):
    cifar.images[3:] = cifar.images[:2]
    cells = {c.name: c.split.images.int() for c in corrupted(write_style("cifar100", tmp_path, severities=[1]))}
    added = cells["gaussian_noise"] - cifar.images.int()
    assert not torch.equal(added[:2], added[3:])  # the second chunk does not repeat the first


def test_an_existing_folder_is_not_overwritten(tmp_path: Path):
    folder = tmp_path / "cifar100-c-style"
    folder.mkdir()
    (folder / "mine").write_text("")
    with pytest.raises(UserError, match="exists"):
        write_style("cifar100", tmp_path)
    assert [path.name for path in folder.iterdir()] == ["mine"]


@pytest.mark.parametrize("trouble", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")])
def test_a_failure_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: BaseException):
    def stop(images: torch.Tensor, name: str, severity: int, generator: torch.Generator) -> torch.Tensor:
        if (name, severity) == ("fog", 3):
            raise trouble
        return images

    monkeypatch.setattr(style, "corrupt", stop)
    with pytest.raises((KeyboardInterrupt, UserError)) as caught:
        write_style("cifar100", tmp_path)
    assert list(tmp_path.iterdir()) == []
    if isinstance(trouble, OSError):
        assert "No space left" in str(caught.value)


def test_an_unwritable_folder_is_an_error(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=f"{tmp_path / 'file'}.* cannot be written"):
        write_style("cifar100", tmp_path / "file" / "deep")


@pytest.mark.parametrize("severities", [[], [0], [1, 6]])
def test_an_unknown_severity_is_rejected(tmp_path: Path, severities: list[int]):
    with pytest.raises(UserError, match="severities"):
        write_style("cifar100", tmp_path, severities=severities)


def test_a_negative_seed_is_rejected(tmp_path: Path):
    with pytest.raises(UserError, match="seed"):
        write_style("cifar100", tmp_path, seed=-1)


def test_other_data_sets_are_rejected(tmp_path: Path):
    with pytest.raises(UserError, match="did you mean 'cifar100'"):
        write_style("cifar1000", tmp_path)
