"""What no function of `mixmo` can use is refused in one sentence of ours."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import mixmo

IMAGES = torch.zeros(4, 3, 8, 8)
LOGITS = torch.randn(2, 200, 5, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def net() -> mixmo.Network:
    return mixmo.create("wrn10_1", classes=5)


REFUSED: dict[str, tuple[Callable[[mixmo.Network], object], str]] = {
    "no model": (lambda _: mixmo.wrap(None), "the model is a NoneType; give an nn.Module"),
    "predict nothing": (lambda net: mixmo.predict(net, None), "images are of type NoneType"),
    "predict by nothing": (lambda _: mixmo.predict(None, IMAGES), "a NoneType has no members"),
    "predict on meta": (lambda net: mixmo.predict(net, IMAGES.to("meta")), "images are on the meta device"),
    "half a batch": (lambda net: mixmo.predict(net, IMAGES, batch_size=2.5), "batch_size = 2.5; give a whole number"),
    "calibration": (lambda net: mixmo.predict(net, IMAGES, calibration="x"), "calibration is a str; give what"),
    "fold nothing": (lambda _: mixmo.fold(None), "a NoneType cannot be folded"),
    "convert nothing": (lambda _: mixmo.convert(None), "a NoneType cannot be converted"),
    "apart": (lambda net: mixmo.convert(net, members=3, apart="x"), "apart = 'x'; give a number"),
    "negative distance": (lambda net: mixmo.convert(net, members=3, apart=-1), "apart = -1; give a number from 0"),
    "load nothing": (lambda _: mixmo.load(None), "where = None; give a path"),
    "read no folder": (lambda _: mixmo.from_pretrained(None), "where = None; give a path"),
    "save nowhere": (lambda net: mixmo.save_pretrained(net, None), "folder = None; give a path"),
    "save what": (lambda net: mixmo.save_pretrained(net, "new", about={}), "about is a dict; give a mixmo.About"),
    "push nowhere": (lambda net: mixmo.push_to_hub(net, None), "'None' is no name on the Hub"),
    "export nowhere": (lambda net: mixmo.export(net, None), "path = None; give a path"),
    "classes in an export": (lambda net: mixmo.export(net, "new.pt2", classes=5), "classes = 5; give a name for each"),
    "numbers of an export": (lambda net: mixmo.export(net, "new.pt2", mean=0.5, std=0.2), "give a sequence of one"),
    "ranges of an export": (
        lambda net: mixmo.export(net, "new.onnx", precision="int8", calibration=[1]),
        "images are a list; give a tensor",
    ),
    "prediction": (lambda _: mixmo.Prediction(LOGITS[0]), r"a prediction of logits \(200, 5\); give a tensor"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_in_a_sentence(net: mixmo.Network, case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    call, message = REFUSED[case]
    with pytest.raises(mixmo.UserError, match=message) as caught:
        call(net)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())
