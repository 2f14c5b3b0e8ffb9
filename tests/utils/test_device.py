"""The package works with any `torch.set_default_device`."""

from pathlib import Path

import torch
from torch import nn

import mixmo
from mixmo.engine import Runtime, train
from mixmo.evaluation.run_scores import score_runs
from mixmo.metrics import evaluate
from mixmo.recipes import named


def test_a_run_is_the_same_with_another_default_device(tmp_path: Path) -> None:
    """Its weights are read back onto the CPU."""
    recipe, runtime = named("digits/cut-mixmo").replace(width=1, epochs=1, validation=200), Runtime("cpu", quiet=True)
    usual = train(recipe, tmp_path / "usual", runtime)
    with torch.device("meta"):
        run = train(recipe, tmp_path / "run", runtime)
        net = mixmo.load(run.path)
        assert score_runs([run], "weights", epochs=["last"]).to_dict()["last"] == usual.read_scores()["last"]
    for ours, other in zip(net.parameters(), mixmo.load(usual.path).parameters(), strict=True):
        assert torch.equal(ours, other)


def test_the_python_api_works_with_another_default_device(tmp_path: Path) -> None:
    """The meta device stands for a GPU: tensors created there have no values."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
    own = mixmo.create("wrn10_1", classes=4, members=2)
    images, labels = torch.randn(60, 3, 16, 16), torch.randint(4, (60,))
    with torch.device("meta"):
        net = mixmo.wrap(model)
        mix = mixmo.Mixer("cut", stride=net.stride)(images, labels)
        mixmo.loss(net(mix), mix).backward()
        held = mixmo.predict(net, images)
        calibration = mixmo.calibrate(held.logits, labels, method="raps", level=0.5)
        assert mixmo.predict(net, images, calibration=calibration).sets.device.type == "cpu"
        assert 0 <= evaluate(held.logits, labels).ensemble.top1 <= 1
        assert mixmo.convert(net, members=3).members == 3
        assert mixmo.export(mixmo.fold(net), tmp_path / "net.pt2").difference < 1e-4
        mixmo.export(own, tmp_path / "own.pt2", normalise=True, mean=(0.5,) * 3, std=(0.5,) * 3)
        again = mixmo.load(mixmo.save_pretrained(net, tmp_path / "net"), model=model)
        assert torch.equal(mixmo.predict(again, images).logits, held.logits)
