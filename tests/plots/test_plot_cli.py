"""`mixmo plot`: files written, files kept, bad input."""

import errno
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from PIL import Image

from mixmo.cli.app import main
from mixmo.plots import dynamics, loss_weights, masks, pairs
from mixmo.plots.style import save
from mixmo.runs.directory import Run
from mixmo.utils.errors import UserError

KINDS = ("masks", "weights", "pairs", "dynamics", "filters")


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def words(kind: str, runs: list[Run]) -> list[str]:
    more = {"pairs": ["digits/cut-mixmo"], "dynamics": [str(run.path) for run in runs], "filters": [str(runs[0].path)]}
    return ["plot", kind, *more.get(kind, [])]


@pytest.mark.parametrize("kind", KINDS)
def test_figure_is_written_to_a_default_file(
    inside: Path, runs: list[Run], capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    assert main(words(kind, runs)) == 0
    assert capsys.readouterr().out == f"{kind}.png\n"
    with Image.open(inside / f"{kind}.png") as image:
        width, height = image.size
        assert width > 400
        assert height > 300
        assert len(image.convert("L").getcolors()) > 10


def test_nothing_is_overwritten_unless_forced(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (inside / "weights.png").write_text("mine")
    assert main(["plot", "weights"]) == 2
    assert "--force" in capsys.readouterr().err
    assert (inside / "weights.png").read_text() == "mine"
    assert main(["plot", "weights", "--force"]) == 0
    first = (inside / "weights.png").read_bytes()
    assert main(["plot", "weights", "--out", "again.png"]) == 0
    assert (inside / "again.png").read_bytes() == first  # no date, no version


def test_command_draws_the_chosen_figure(inside: Path, runs: list[Run], monkeypatch: pytest.MonkeyPatch) -> None:
    """The images, the draw and the recipe that were named; of an ensemble, every network."""
    asked, empty = list[tuple[object, ...]](), loss_weights.draw()
    monkeypatch.setattr(masks, "draw", lambda data, *given: asked.append((data.name, *given)) or empty)
    monkeypatch.setattr(pairs, "draw", lambda recipe, data, n: asked.append((recipe.width, data.name, n)) or empty)
    monkeypatch.setattr(dynamics, "draw", lambda runs: asked.append(tuple(run.path for run in runs)) or empty)
    both = Run.create(inside / "both", runs[0].recipe.replace(networks=2))
    for place in both.network_paths():
        Run.create(place, runs[0].recipe)
    assert main(["plot", "masks", "--images", "3", "5", "--draw", "7"]) == 0
    assert main(["plot", "pairs", "digits/cut-mixmo", "--width", "3", "--draw", "8"]) == 0
    assert main(["plot", "dynamics", str(runs[1].path), "both"]) == 0
    assert asked == [("digits", [3, 5], 7), (3, "digits", 8), (runs[1].path, Path("both/0"), Path("both/1"))]


@pytest.mark.parametrize(("suffix", "start"), [("pdf", b"%PDF"), ("svg", b"<?xml"), ("PNG", b"\x89PNG")])
def test_suffix_chooses_the_file_format(inside: Path, suffix: str, start: bytes) -> None:
    assert main(["plot", "weights", "--out", f"w.{suffix}"]) == 0
    assert (inside / f"w.{suffix}").read_bytes().startswith(start)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["mask"], "did you mean 'masks'"),
        (["--out", "a.png"], "plot KIND"),
        (["weights", "--out", "a.doc"], "png, pdf or svg"),
        (["weights", "--out", "missing/a.png"], "existing folder"),
        (["weights", "--out", "."], "png"),
        (["weights", "--forse"], "did you mean '--force'"),
        (["masks", "--dataset", "digit"], "did you mean 'digits'"),
        (["masks", "--dataset", "cifar100", "--data", "nowhere"], "mixmo data get cifar100"),
        (["masks", "--images", "0", "9999"], "test images 0 to"),
        (["masks", "--images", "0"], "images"),
        (["pairs", "cifar100/cut-mixmo", "--data", "nowhere"], "mixmo data get cifar100 --to nowhere"),
        (["pairs"], "recipe"),
        (["pairs", "digits/cut"], "unknown recipe"),
        (["pairs", "digits/cut-mixmo", "--p", "2"], "p = 2"),
        (["dynamics"], "runs"),
        (["dynamics", "nowhere"], "not a run directory"),
        (["filters", "nowhere"], "not a run directory"),
    ],
)
def test_bad_input_raises_an_error(inside: Path, said: Callable[..., str], arguments: list[str], says: str) -> None:
    assert says in said("plot", *arguments)
    assert not list(inside.iterdir())


def test_missing_matplotlib_raises_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["plot", "weights"]) == 2
    assert "pip install mixmo[plots]" in capsys.readouterr().err


def test_help_lists_the_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plot", "--help"]) == 0
    text = capsys.readouterr().out
    assert all(kind in text for kind in KINDS)


def test_a_full_disk_leaves_the_picture_that_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "masks.png"
    path.write_bytes(b"before")

    def full(self: Path, content: bytes) -> int:
        with self.open("wb") as file:
            file.write(content[:3])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(UserError, match=r"could not be written .No space left on device.; .* free some space"):
        save(Figure(), path, force=True)
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]
