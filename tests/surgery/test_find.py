"""The stem and the head are found, or a UserError names the layers that could be them."""

from collections import namedtuple

import pytest
import torch
from torch import Tensor, nn

import mixmo
from helpers import assert_wrap_fails
from mixmo.mixing.types import FeatureMixing
from mixmo.surgery.find import replace

END = [nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
Outputs = namedtuple("Outputs", ["logits", "aux"])


class Auxiliary(nn.Module):
    """Two outputs in training, as GoogLeNet has."""

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
    """Uses its stem's weights outside of the stem."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.conv(x).mean((2, 3)) * self.conv.weight.abs().sum())


class Both(Own):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"colour": self.head(self.conv(x).mean((2, 3)))}


def test_a_model_without_convolution_or_patch_embedding_raises() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 16), nn.ReLU(), nn.Linear(16, 5))
    assert_wrap_fails(model, "convolution.*no other layer can be its stem")
    assert_wrap_fails(nn.Sequential(*END), "convolution")


def test_outputs_that_are_no_logits_raise() -> None:
    assert_wrap_fails(
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveMaxPool2d(2)), "classifier"
    )
    features = nn.Sequential(nn.Conv2d(3, 16, 3), *END, nn.Unflatten(1, (4, 4)), nn.AvgPool1d(2), nn.Flatten())
    assert_wrap_fails(features, "no layer outputs the 8 logits")
    assert_wrap_fails(Both(), "colour")


@pytest.mark.parametrize("name", ["test_efficientnet", "test_convnext", "test_vit"])
def test_a_backbone_without_classifier_raises(name: str) -> None:
    timm = pytest.importorskip("timm")
    assert_wrap_fails(timm.create_model(name, num_classes=0), "num_classes=0")


@pytest.mark.parametrize(
    ("name", "place"),
    [("shufflenet_v2_x0_5", "fc"), ("mobilenet_v3_small", "classifier.3"), ("resnet18", "fc")],
)
def test_an_identity_in_place_of_the_classifier_raises(name: str, place: str) -> None:
    """Behind pooling, behind an activation that works in place, behind a sum: as for torchvision's features."""
    models = pytest.importorskip("torchvision.models")
    model = models.get_model(name)
    replace(model, place, nn.Identity())
    assert_wrap_fails(model, f"Identity.*{place}", size=(3, 32, 32))


def test_an_identity_after_the_classifier_is_ignored() -> None:
    dense = nn.Sequential(nn.Conv2d(3, 8, 3), *END, nn.Linear(8, 5), nn.Identity())
    assert mixmo.wrap(dense).heads == ("4",)
    pooled = nn.Sequential(nn.Conv2d(3, 8, 3), *END[:2], nn.Conv2d(8, 5, 1), nn.Flatten(), nn.Identity())
    assert mixmo.wrap(pooled).heads == ("3",)
    convolutions = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 5, 1), *END, nn.Identity())
    assert_wrap_fails(convolutions, "Identity")  # it cannot be distinguished from features
    assert mixmo.wrap(convolutions, head="2").classes == 5


def test_a_softmax_at_the_end_raises() -> None:
    for last in (nn.Softmax(1), nn.LogSoftmax(1), nn.Sigmoid()):
        model = nn.Sequential(nn.Conv2d(3, 8, 3), *END, nn.Linear(8, 5), last)
        assert_wrap_fails(model, type(last).__name__)

    class Functional(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).softmax(1)

    assert_wrap_fails(Functional(nn.Conv2d(3, 8, 3), *END, nn.Linear(8, 5)), "softmax")


def test_auxiliary_heads_raise_or_are_frozen() -> None:
    model = Auxiliary()
    assert_wrap_fails(model, "fc, aux")
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


def test_an_image_that_bypasses_the_stem_raises() -> None:
    assert_wrap_fails(Past(11), "past 'conv'")
    assert_wrap_fails(Twice(), "do not predict")
    assert_wrap_fails(Weighs(), "do not predict")


def test_names_of_other_layers_raise() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), *END, nn.Linear(8, 5))
    assert_wrap_fails(model, "conv1.*0, 1, 2", stem="conv1")
    assert_wrap_fails(model, "feature map", stem="6")
    assert mixmo.wrap(model, stem="2").direct == (False,)  # mixing deeper is the user's choice
    model[1].idle = nn.Conv2d(3, 8, 3)
    assert_wrap_fails(model, "stem '1.idle' does not read the image; .* such as 0, 2$", stem="1.idle")
    assert_wrap_fails(model, "head '2' .* such as 6$", head="2")


def test_a_size_that_the_model_does_not_take_raises() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.Flatten(), nn.Linear(8 * 19 * 19, 5))
    assert_wrap_fails(model, "size=")
    assert mixmo.wrap(model, size=(3, 40, 40)).size == (3, 40, 40)
    assert_wrap_fails(model, r"no images of \(3, 32, 32\)", size=(3, 32, 32))


def test_an_ensemble_is_not_wrapped_again() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), *END, nn.Linear(8, 5))
    net = mixmo.wrap(model)
    assert_wrap_fails(net, "convert")
    with pytest.raises(mixmo.UserError, match="members=2"):
        net.read(torch.zeros(3, 1, 3, 8, 8))
    with pytest.raises(mixmo.UserError, match=r"mixmo\.create"):
        net.read(torch.zeros(2, 1, 3, 8, 8), feature_mixing=FeatureMixing(torch.zeros(1).long(), ()))


def test_images_that_the_backbone_pads_raise() -> None:
    """Its stem was found to read the image itself; a padded image would be mixed at other positions."""

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


def test_the_head_of_two_tasks_must_be_named() -> None:
    class Tasks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.animal, self.colour = nn.Conv2d(3, 8, 3), nn.Linear(8, 5), nn.Linear(8, 7)

        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            features = self.conv(x).relu().mean((2, 3))
            return self.animal(features), self.colour(features), features.norm()

    assert_wrap_fails(Tasks(), "animal, colour")
    assert mixmo.wrap(Tasks(), head="animal").classes == 5


def test_wrong_arguments_raise() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), *END, nn.Linear(8, 5))
    assert_wrap_fails("resnet18", "str")  # type: ignore[arg-type]
    assert_wrap_fails(model, "members", members=2.0)
    assert_wrap_fails(model, "stem", stem=model[0])
    assert_wrap_fails(model, "head", head=[model[4]])
    for size in (32, (32, 32), (3, 0, 32)):
        assert_wrap_fails(model, "size", size=size)
    for diversity in (-0.1, 1.1, "0.1"):
        assert_wrap_fails(model, "diversity", diversity=diversity)
    nn.init.constant_(model[-1].weight, torch.nan)
    assert_wrap_fails(model, "NaN")


def test_one_output_or_one_layer_raises() -> None:
    assert_wrap_fails(nn.Sequential(nn.Conv2d(3, 8, 3), *END, nn.Linear(8, 1)), "classifier")
    assert_wrap_fails(nn.Sequential(nn.Conv2d(3, 8, 3), *END), "'0'")
