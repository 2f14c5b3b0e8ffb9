"""`prediction.show`: images, probabilities and members as HTML that no name can break."""

from html.parser import HTMLParser

import numpy as np
import pytest
import torch

import mixmo
from mixmo.data.types import Dataset

LOGITS = torch.randn(2, 3, 10, generator=torch.Generator().manual_seed(0))


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)


def test_every_image_stands_beside_its_prediction(digits: Dataset) -> None:
    prediction = mixmo.Prediction(LOGITS)
    shown = prediction.show(digits.test.images[:3], labels=digits.test.labels[:3])
    assert Tags(shown._repr_html_()).seen.count("img") == 3
    for n in range(3):
        assert f"{100 * prediction.confidence[n]:.1f} %" in shown.html
        assert f"entropy {prediction.entropy[n]:.3f}" in shown.html
        first = int(prediction.members[1, n].argmax())
        assert f"member 1: {first}, {100 * prediction.members[1, n].max():.1f} %" in shown.html


def test_calibrated_predictions_show_their_sets() -> None:
    logits_MNK, labels_N = torch.randn(2, 200, 10), torch.arange(200) % 10
    calibration = mixmo.calibrate(logits_MNK, labels_N)
    images = torch.zeros(3, 8, 8, 3, dtype=torch.uint8)
    assert mixmo.Prediction(LOGITS, calibration).show(images).html.count("conformal set") == 3


@pytest.mark.parametrize("shape", [(3, 3, 8, 8), (3, 1, 8, 8), (3, 5, 8, 8)])
def test_normalised_floats_and_other_channels_are_shown(shape: tuple[int, ...]) -> None:
    prediction = mixmo.Prediction(LOGITS)
    assert "data:image/png" in prediction.show(torch.randn(shape)).html
    assert "data:image/png" in prediction.show(np.zeros(shape, np.uint8)).html


def test_class_names_are_text() -> None:
    names = ["<script>alert(1)</script>", *map(str, range(9))]
    logits = torch.zeros(1, 1, 10)
    logits[..., 0] = 5
    shown = mixmo.Prediction(logits).show(torch.zeros(1, 3, 8, 8), classes=names)
    assert "script" not in Tags(shown.html).seen
    assert "&lt;script&gt;" in shown.html


def test_mistakes_raise_one_sentence() -> None:
    prediction, images = mixmo.Prediction(LOGITS), torch.zeros(3, 3, 8, 8)
    with pytest.raises(mixmo.UserError, match="2 images"):
        prediction.show(images[:2])
    with pytest.raises(mixmo.UserError, match="class names"):
        prediction.show(images, classes=["one"])
    with pytest.raises(mixmo.UserError, match="labels"):
        prediction.show(images, labels=[1])
    with pytest.raises(mixmo.UserError, match="list"):
        prediction.show([1, 2, 3])  # type: ignore[arg-type]
