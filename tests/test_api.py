"""What no function of `mixmo` can use is refused in one sentence of ours."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import mixmo

IMAGES, LABELS = torch.zeros(4, 3, 8, 8), torch.arange(4)
LOGITS = torch.randn(2, 200, 5, generator=torch.Generator().manual_seed(0))
MANY = torch.arange(200) % 5


@pytest.fixture(scope="module")
def net() -> mixmo.Network:
    return mixmo.create("wrn10_1", classes=5)


REFUSED: dict[str, tuple[Callable[[mixmo.Network], object], str]] = {
    "no name": (lambda _: mixmo.create(None, 5), "model 'None' is not of the form"),
    "no classes": (lambda _: mixmo.create("wrn10_1", None), "classes = None; give a whole number, at least 1"),
    "half a class": (lambda _: mixmo.create("wrn10_1", 5.5), "classes = 5.5; give a whole number"),
    "members as text": (lambda _: mixmo.create("wrn10_1", 5, "2"), "members = '2'; give a whole number"),
    "true members": (lambda _: mixmo.create("wrn10_1", 5, True), "members = True; give a whole number"),
    "no encoders": (lambda _: mixmo.create("wrn10_1", 5, encoders=0), "encoders = 0; take one each of the 2 members"),
    "no channels": (lambda _: mixmo.create("wrn10_1", 5, channels=0), "channels = 0; give a whole number"),
    "no model": (lambda _: mixmo.wrap(None), "the model is a NoneType; give an nn.Module"),
    "predict nothing": (lambda net: mixmo.predict(net, None), "images are of type NoneType"),
    "predict by nothing": (lambda _: mixmo.predict(None, IMAGES), "a NoneType has no members"),
    "predict on meta": (lambda net: mixmo.predict(net, IMAGES.to("meta")), "images are on the meta device"),
    "half a batch": (lambda net: mixmo.predict(net, IMAGES, batch_size=2.5), "batch_size = 2.5; give a whole number"),
    "calibration": (lambda net: mixmo.predict(net, IMAGES, calibration="x"), "calibration is a str; give what"),
    "mask": (lambda _: mixmo.Mixer("nothing"), "unknown mask 'nothing'; there are: concat, cow"),
    "no mask": (lambda _: mixmo.Mixer(None), "mask = None; give its name"),
    "masks": (lambda _: mixmo.Mixer(["cut"]), r"mask = \['cut'\]; give its name"),
    "half a member": (lambda _: mixmo.Mixer(members=2.5), "members = 2.5; give a whole number"),
    "no stride": (lambda _: mixmo.Mixer(stride=0), "stride = 0; give a whole number, at least 1"),
    "p as text": (lambda _: mixmo.Mixer(p="0.5"), "p = '0.5'; give a number"),
    "infinite alpha": (lambda _: mixmo.Mixer(alpha=float("inf")), "needs alpha > 0, and finite"),
    "no association": (lambda _: mixmo.Mixer(association=None), "unknown association 'None'"),
    "mix nothing": (lambda _: mixmo.Mixer()(None, LABELS), "images are a NoneType"),
    "mix one image": (lambda _: mixmo.Mixer()(IMAGES[0], LABELS), r"images are a Tensor \(3, 8, 8\); give a tensor"),
    "mix no images": (lambda _: mixmo.Mixer()(IMAGES[:0], LABELS[:0]), "none of them 0"),
    "mix arrays": (lambda _: mixmo.Mixer()(IMAGES.numpy(), LABELS), "images are a ndarray"),
    "no labels": (lambda _: mixmo.Mixer()(IMAGES, None), "labels are no tensor"),
    "names for labels": (lambda _: mixmo.Mixer()(IMAGES, list("abcd")), "labels are no tensor"),
    "no progress": (lambda _: mixmo.Mixer()(IMAGES, LABELS, None), "progress = None; give a number"),
    "progress in steps": (lambda _: mixmo.Mixer()(IMAGES, LABELS, 2), "progress = 2; give the share of training done"),
    "progress backwards": (lambda _: mixmo.Mixer()(IMAGES, LABELS, -0.1), "progress = -0.1; give the share"),
    "progress of nothing": (lambda _: mixmo.Mixer()(IMAGES, LABELS, float("nan")), "progress = nan; give the share"),
    "loss of labels": (lambda net: mixmo.loss(net(IMAGES), LABELS), "loss of a Tensor and a Tensor; give"),
    "loss of nothing": (lambda _: mixmo.loss(None, None), "loss of a NoneType and a NoneType; give"),
    "criterion": (lambda net: mixmo.MixMoLoss()(net(IMAGES), None), "target is a NoneType"),
    "read nothing": (lambda net: net(None), "the network was given a NoneType; give a Mix, or float images"),
    "read one image": (lambda net: net(IMAGES[0]), r"given a torch.float32 \(3, 8, 8\)"),
    "read pixels": (lambda net: net(IMAGES.byte()), "given a torch.uint8"),
    "mixed pixels": (lambda net: net(mixmo.Mixer()(IMAGES.byte(), LABELS)), "a Mix of torch.uint8 images; normalise"),
    "three for two": (lambda net: net(mixmo.Mixer(members=3)(IMAGES, LABELS)), "3 images a sample for a network that"),
    "fold nothing": (lambda _: mixmo.fold(None), "a NoneType cannot be folded"),
    "convert nothing": (lambda _: mixmo.convert(None), "a NoneType cannot be converted"),
    "apart": (lambda net: mixmo.convert(net, members=3, apart="x"), "apart = 'x'; give a number"),
    "negative distance": (lambda net: mixmo.convert(net, members=3, apart=-1), "apart = -1; give a number from 0"),
    "calibrate nothing": (lambda _: mixmo.calibrate(None, MANY), "logits_MNK is a NoneType"),
    "calibrate by nothing": (lambda _: mixmo.calibrate(LOGITS, None), "labels_N is a NoneType"),
    "level": (lambda _: mixmo.calibrate(LOGITS, MANY, level="x"), "level = 'x'; give a number"),
    "risk": (lambda _: mixmo.calibrate(LOGITS, MANY, risk="x"), "risk = 'x'; give a number"),
    "seed": (lambda _: mixmo.calibrate(LOGITS, MANY, seed="x"), "seed = 'x'; give a whole number"),
    "about nothing": (lambda _: mixmo.About(None, None, None), "size = None; give a tuple of numbers"),
    "half a pixel": (lambda _: mixmo.About((3, 8.5, 8), (0,) * 3, (1,) * 3), "a side of size = 8.5"),
    "no deviation": (lambda _: mixmo.About((3, 8, 8), (0,) * 3, (0,) * 3), r"std = \(0, 0, 0\); pixels are divided"),
    "text as mean": (lambda _: mixmo.About((1, 8, 8), ("a",), (1,)), "a value of mean or std = 'a'"),
    "about a list": (lambda _: mixmo.About.from_dict([]), "a list does not describe a network"),
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
