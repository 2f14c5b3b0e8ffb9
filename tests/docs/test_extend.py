"""The Python of docs/guides/extend.md runs as it is written there, and its parts serve the command line."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import mixmo
from mixmo.augment.pixel import AUGMENTATIONS
from mixmo.cli.app import main
from mixmo.data import DATASETS
from mixmo.engine import Runtime, train
from mixmo.metrics import METRICS, evaluate
from mixmo.mixing.masks import MASKS
from mixmo.models import FAMILIES, parameters
from mixmo.recipes import named
from mixmo.runs.directory import Run

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "extend.md"
OWN = ["--dataset", "hues", "--mask", "disc", "--pixel", "halves", "--model", "plain", "--depth", "2"]


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the page defines; the registries are as before afterwards."""
    for registry in (MASKS, AUGMENTATIONS, DATASETS, METRICS):
        monkeypatch.setattr(registry, "_things", dict(registry._things))
    monkeypatch.setitem(FAMILIES, "plain", None)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "parts"}
    exec("".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)), names)
    return names


def test_components_of_the_extend_guide_train_evaluate_and_are_listed(
    page: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert page["report"].ensemble.top1 > 0.6  # a blind guess: a third
    stored = evaluate(*Run.open("runs/own0").read_logits("last"))
    again = evaluate(page["prediction"].logits, page["hues"](None).test.labels)
    assert again.ensemble.nll == pytest.approx(stored.ensemble.nll, abs=1e-5)
    assert set(page["mix"].weights.unique().tolist()) <= {0.0, 1.0}
    assert all(weight.grad is not None for weight in page["net"].parameters())
    assert main(["train", "digits/cut-mixmo", *OWN, "--epochs", "1", "--quiet", "--out", "runs/typed"]) == 0
    assert main(["eval", "runs/typed", "--source", "weights"]) == 0
    assert main(["list", "models"]) == 0
    assert main(["show", "digits/cut-mixmo", *OWN, "--no-time"]) == 0
    out = capsys.readouterr().out
    assert "plain " in out
    assert f"# {parameters(page['net']):,} parameters" in out
    assert "# 360 steps, 12 per epoch" in out  # 400 images, 32 of them a batch: b = 2


def test_a_metric_of_ones_own(page: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """In every file and table that has ours, by a plain loop; last of all in a run that does not know it."""
    run = Run.open("runs/own0")
    logits, labels = run.read_logits("last")
    answers = logits.mean(0).argmax(1).tolist()
    worst = min(
        sum(answer == k for answer, label in zip(answers, labels.tolist(), strict=True) if label == k)
        / labels.tolist().count(k)
        for k in range(3)
    )
    assert run.read_scores()["last"]["ensemble"]["worst_class"] == pytest.approx(worst)
    assert all("worst_class" in line["test"]["members"][1] for line in run.read_metrics())
    METRICS._things["later"] = page["worst_class"]
    for words in (["runs/own0"], ["runs/own0", "--on", "hues"]):
        assert main(["eval", *words]) == 0
        lines = [line.split() for line in capsys.readouterr().out.splitlines()]
        assert [line[-2:] for line in lines if "Brier" in line] == [["later", "worst_class"]]
        row = next(line for line in lines if "ensemble" in line)
        assert row[-2:] == [f"{worst:.4f}"] * 2
    assert main(["list", "metrics"]) == 0
    assert "Accuracy of the class with the lowest accuracy." in capsys.readouterr().out


def test_a_run_on_a_data_set_of_ones_own_that_sees_the_centre(page: dict[str, Any]) -> None:
    run = train(page["recipe"].replace(size=12, epochs=1), "runs/centre", Runtime(quiet=True))
    net = mixmo.load(run.path)
    assert (net.about.size, net.about.resize) == ((3, 12, 12), 16)
    centre = page["hues"](None).test.images[:, 2:14, 2:14]
    torch.testing.assert_close(mixmo.predict(net, centre).logits, run.read_logits("last")[0], rtol=1e-4, atol=1e-5)


def test_a_network_of_ones_own_is_saved(page: dict[str, Any], tmp_path: Path) -> None:
    again = mixmo.load(mixmo.save_pretrained(mixmo.convert(page["net"], members=3), tmp_path / "saved"))
    assert (again.name, again.members) == ("plain2_2", 3)
    del FAMILIES["plain"]
    with pytest.raises(mixmo.UserError, match=r"config.json: unknown model family 'plain'"):
        mixmo.load(tmp_path / "saved")


@pytest.mark.parametrize("kind", ["two dense layers", "convolution"])
def test_a_run_with_heads_of_ones_own(page: dict[str, Any], kind: str) -> None:
    def head(classes: int) -> nn.Module:
        if kind == "convolution":
            return nn.Sequential(nn.Unflatten(1, (-1, 1, 1)), nn.Conv2d(64, classes, 1), nn.Flatten())
        return nn.Sequential(nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, classes))

    FAMILIES["plain"] = lambda depth, width: page["plain"](depth, width)._replace(head=head)
    net = mixmo.load(train(page["recipe"].replace(epochs=1), "runs/heads", Runtime(quiet=True)).path)
    if kind == "convolution":
        with pytest.raises(mixmo.UserError, match=r"mixmo.create"):
            mixmo.save_pretrained(net, "saved")
    else:
        assert mixmo.load(mixmo.save_pretrained(net, "saved")).about == net.about


def test_the_name_of_a_family_may_have_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAMILIES, "v2_wide", FAMILIES["wrn"])
    net = named("digits/cut-mixmo").replace(model="v2_wide").network(3, (3, 32, 32))
    assert parameters(net) == parameters(mixmo.create("wrn10_2", classes=3))


def test_augmentation_equals_a_loop(page: dict[str, Any]) -> None:
    x, partner = torch.zeros(6, 1, 4, 10), torch.ones(6, 1, 4, 10)
    lam, u = torch.tensor([0.1, 0.5, 0.9] * 2), torch.tensor([[0.2]] * 3 + [[0.7]] * 3)
    mixed = page["halves"](x, partner, lam, u, torch.ones(6, 1, 1), False)
    for n in range(6):
        own = round(10 * lam[n].item())
        row = [0.0] * own + [1.0] * (10 - own)
        assert mixed.images[n, 0, 0].tolist() == (row if n < 3 else row[::-1])
    torch.testing.assert_close(mixed.lam, lam)


def test_feature_mixing_is_rejected_where_a_core_has_no_stages(
    page: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "digits/manifold-mixup", "--model", "plain", "--depth", "2", "--out", "runs/hidden"]
    assert main(words) == 2
    assert "feature mixing needs" in capsys.readouterr().err
    assert not Path("runs/hidden").exists()
