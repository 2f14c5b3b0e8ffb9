"""What cannot be wrapped is refused in one sentence that names what could."""

from collections import namedtuple

import pytest
import torch
from torch import Tensor, nn

import mixmo
from helpers import refused
from mixmo.mixing.types import FeatureMixing
from mixmo.surgery.find import replace

END = [nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
Outputs = namedtuple("Outputs", ["logits", "aux"])


class Auxiliary(nn.Module):
    """LabelledLogits twice in training, as GoogLeNet does."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), *END)
        self.fc, self.aux = nn.Linear(8, 5), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor | Outputs:
        features = self.stem(x)
        return Outputs(self.fc(features), self.aux(features)) if self.training else self.fc(features)


class Own(nn.Module):
    """A stem and a head, and between them whatever a test has."""

    def __init__(self, features: int = 8) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 8, 3), nn.Linear(features, 5)


class Past(Own):
    """The image's mean reaches the head past the stem: Past(11)."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.cat([self.conv(x).relu().mean((2, 3)), x.mean((2, 3))], 1))


class Twice(Own):
    """Looks at the image and its mirror image through one stem."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head((self.conv(x) + self.conv(x.flip(-1)).flip(-1)).relu().mean((2, 3)))


class Weighs(Own):
    """Counts on its stem's weights outside of the stem."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.conv(x).mean((2, 3)) * self.conv.weight.abs().sum())


class Both(Own):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"colour": self.head(self.conv(x).mean((2, 3)))}


def test_no_convolution_first() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 16), nn.ReLU(), nn.Linear(16, 5))
    refused(model, "no convolution or patch embedding; .*1, 3")
    refused(nn.Sequential(*END), "no convolution or patch embedding")


def test_no_classifier() -> None:
    refused(
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveMaxPool2d(2)), "classifier gives"
    )
    features = nn.Sequential(nn.Conv2d(3, 16, 3), *END, nn.Unflatten(1, (4, 4)), nn.AvgPool1d(2), nn.Flatten())
    refused(features, "no layer gives the model's 8 answers.* 0")
    refused(Both(), "returns a dict with colour; a classifier returns logits")


@pytest.mark.parametrize("name", ["test_efficientnet", "test_convnext", "test_vit"])
def test_a_backbone_that_answers_with_features(name: str) -> None:
    timm = pytest.importorskip("timm")
    refused(timm.create_model(name, num_classes=0), "num_classes=0 and answers with features; build it with")


@pytest.mark.parametrize(
    ("name", "place"),
    [("shufflenet_v2_x0_5", "fc"), ("mobilenet_v3_small", "classifier.3"), ("resnet18", "fc")],
)
def test_an_identity_in_the_place_of_the_classifier(name: str, place: str) -> None:
    """Behind pooling, behind an activation that works in place, behind a sum: torchvision's way to ask for features."""
    models = pytest.importorskip("torchvision.models")
    model = models.get_model(name)
    replace(model, place, nn.Identity())
    refused(model, rf"ends with an Identity \('{place}'\) and answers with features; put a layer", size=(3, 32, 32))


def test_an_identity_behind_the_classifier() -> None:
    dense = nn.Sequential(nn.Conv2d(3, 8, 3), *END, nn.Linear(8, 5), nn.Identity())
    assert mixmo.wrap(dense).heads == ("4",)
    pooled = nn.Sequential(nn.Conv2d(3, 8, 3), *END[:2], nn.Conv2d(8, 5, 1), nn.Flatten(), nn.Identity())
    assert mixmo.wrap(pooled).heads == ("3",)
    convolutions = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 5, 1), *END, nn.Identity())
    refused(convolutions, r"ends with an Identity \('6'\)")  # it cannot be told from features
    assert mixmo.wrap(convolutions, head="2").classes == 5


def test_a_softmax_at_the_end() -> None:
    for last in (nn.Softmax(1), nn.LogSoftmax(1), nn.Sigmoid()):
        model = nn.Sequential(nn.Conv2d(3, 8, 3), *END, nn.Linear(8, 5), last)
        refused(model, rf"ends with a {type(last).__name__} \('5'\); take it off")

    class Functional(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).softmax(1)

    refused(Functional(nn.Conv2d(3, 8, 3), *END, nn.Linear(8, 5)), "4 give 5 answers.*softmax")


def test_several_heads() -> None:
    model = Auxiliary()
    refused(model, "several answers in training, by fc, aux")
    assert model.stem[1].num_batches_tracked == 0
    net = mixmo.wrap(model, head="fc")
    assert net.backbone.stem[1].num_batches_tracked == 0
    mix = mixmo.Mixer("cut")(torch.randn(4, 3, 16, 16), torch.arange(4))
    mixmo.loss(net(mix), mix).backward()
    assert {name for name, p in net.named_parameters() if p.grad is None} == {
        "backbone.aux.weight",
        "backbone.aux.bias",
    }
    assert not net.backbone.aux.weight.requires_grad


def test_an_image_that_goes_past_the_stem() -> None:
    refused(Past(11), "past 'conv' too; .*head")
    refused(Twice(), "calls 'conv' several times")
    refused(Weighs(), "with stem 'conv' and head 'head' the members do not answer as the model did")


def test_wrong_names() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), *END, nn.Linear(8, 5))
    refused(model, "unknown stem layer 'conv1'.*: 0, 1, 2", stem="conv1")
    refused(model, "stem '6' gives .*no map of positions", stem="6")
    assert mixmo.wrap(model, stem="2").direct == (False,)  # mixing deeper is the user's choice
    model[1].idle = nn.Conv2d(3, 8, 3)
    refused(model, "stem '1.idle' does not read the image; name the stem", stem="1.idle")
    refused(model, "head '2' is not called, or does not give the model's 5 answers", head="2")


def test_sizes() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.Flatten(), nn.Linear(8 * 19 * 19, 5))
    refused(model, r"no image of a size tried; give size=\(C, H, W\)")
    assert mixmo.wrap(model, size=(3, 40, 40)).size == (3, 40, 40)
    refused(model, "no image of a size tried", size=(3, 32, 32))


def test_members() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), *END, nn.Linear(8, 5))
    refused(model, "members = 0", members=0)
    net = mixmo.wrap(model)
    refused(net, r"ensemble of 2 already; mixmo\.convert")
    with pytest.raises(mixmo.UserError, match="members=2"):
        net.read(torch.zeros(3, 1, 3, 8, 8))
    with pytest.raises(mixmo.UserError, match=r"mixmo\.create"):
        net.read(torch.zeros(2, 1, 3, 8, 8), feature_mixing=FeatureMixing(torch.zeros(1).long(), ()))


def test_a_backbone_that_pads_some_sizes() -> None:
    """It was found to read the image as it is; an image that it pads is refused, not mixed askew."""

    class Pads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = nn.Conv2d(3, 8, 4, 4), nn.Linear(8, 5)

        def forward(self, x: Tensor) -> Tensor:
            x = nn.functional.pad(x, (0, -x.shape[-1] % 4)) if x.shape[-1] % 4 else x
            return self.head(self.conv(x).mean((2, 3)))

    net = mixmo.wrap(Pads())
    with pytest.raises(mixmo.UserError, match="before its stem"):
        net.read(torch.zeros(2, 1, 3, 8, 10))


def test_two_tasks() -> None:
    class Tasks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.animal, self.colour = nn.Conv2d(3, 8, 3), nn.Linear(8, 5), nn.Linear(8, 7)

        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            features = self.conv(x).relu().mean((2, 3))
            return self.animal(features), self.colour(features), features.norm()

    refused(Tasks(), "several answers in training, by animal, colour; name the head")
    assert mixmo.wrap(Tasks(), head="animal").classes == 5


def test_what_cannot_be_run() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), *END, nn.Linear(8, 5))
    refused("resnet18", "the model is a str; give an nn.Module")  # type: ignore[arg-type]
    for members in (2.0, "2", True, None):
        refused(model, f"members = {members!r}; .*whole number", members=members)
    for size in (32, (32, 32), (3, 0, 32)):
        refused(model, "give channels, height and width", size=size)
    refused(nn.Sequential(nn.LazyConv2d(8, 3), *END, nn.LazyLinear(5)), "lazy layers .*run it on an image once")
    with torch.device("meta"):
        refused(nn.Sequential(nn.Conv2d(3, 8, 3), *END, nn.Linear(8, 5)), "meta device.*build it on the CPU")
    nn.init.constant_(model[-1].weight, torch.nan)
    refused(model, "answers NaN or infinity")


def test_one_number_or_one_layer() -> None:
    refused(nn.Sequential(nn.Conv2d(3, 8, 3), *END, nn.Linear(8, 1)), "one number an image; MixMo needs a classifier")
    refused(nn.Sequential(nn.Conv2d(3, 8, 3), *END), "'0' is the model's first layer and its last")
