"""POST /mix computes what a training batch with the same mask does."""

import base64
import io
from collections.abc import Callable

import httpx
import numpy as np
import pytest
import torch
from PIL import Image

import mixmo
from mixmo.augment.basic import normalise
from mixmo.mixing.mixer import MixDraws
from mixmo.models.network import Ensemble
from mixmo.serve.mixing import Mixing, mix

Draw = Callable[..., bytes]


def pair() -> torch.Tensor:
    return torch.randint(0, 256, (2, 32, 32, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("mask", ["cut", "horizontal", "vertical", "linear", "fmix", "patchup", "cow"])
def test_heads_read_the_mixture_of_training(mask: str, net: Ensemble) -> None:
    """The same ratio and uniform numbers in a `Mixer`, and its `Mix` through the network."""
    images, ratio, x, y, seed = pair(), 0.4, 0.3, 0.6, 5
    mixed = mix(net, net.about, images, Mixing(mask, ratio, x, y, seed), top=7)
    mixer = mixmo.Mixer(mask, stride=net.stride, p=1.0)
    drawn = mixer.draw(1, 32, 32, torch.device("cpu"), torch.Generator())
    placed = {"cut": [y, x], "horizontal": [x], "vertical": [y]}
    u = torch.rand(1, drawn.mask.shape[1], generator=torch.Generator().manual_seed(seed))
    u = torch.tensor([placed[mask]]) if mask in placed else u
    draws = MixDraws(torch.tensor([[ratio], [1 - ratio]]), u, torch.zeros(1), torch.zeros(2, 1))  # A is inside
    coefficients = mixer.coefficients(draws, torch.tensor(1.0), 32, 32)
    x_MNCHW = normalise(images, net.about.mean, net.about.std)[:, None]
    with torch.no_grad():
        probs = net(mixmo.Mix(x_MNCHW, coefficients, torch.zeros(2, 1), torch.ones(2, 1))).softmax(-1)[:, 0]
    assert mixed["ratio"] == pytest.approx(coefficients[0].mean().item(), abs=1e-6)
    for head, expected in zip(mixed["heads"], probs, strict=True):
        given = {row["label"]: row["probability"] for row in head["classes"]}
        assert given == pytest.approx(dict(zip(net.about.classes, expected.tolist(), strict=True)), abs=1e-5)
    assert [head["reads"] for head in mixed["heads"]] == ["A", "B"]


def test_three_members_share_two_images(net: Ensemble) -> None:
    three = mixmo.create("wrn10_1", classes=7, members=3).eval()
    images = pair()
    mixed = mix(three, net.about, images, Mixing("linear", 0.4), top=7)
    x = normalise(images, net.about.mean, net.about.std)[[0, 1, 0]][:, None]
    coefficients = torch.tensor([0.2, 0.6, 0.2])[:, None, None, None, None]
    with torch.no_grad():
        probs = three.read(x, coefficients).softmax(-1)[:, 0]
    assert [head["reads"] for head in mixed["heads"]] == ["A", "B", "A"]
    for head, expected in zip(mixed["heads"], probs, strict=True):
        assert head["classes"][0]["probability"] == pytest.approx(expected.max().item(), abs=1e-5)


def png(pixels: torch.Tensor) -> str:
    file = io.BytesIO()
    Image.fromarray(pixels.numpy()).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def test_the_picture_shows_a_inside_of_the_box_and_b_outside(client: httpx.Client, net: Ensemble) -> None:
    images = pair()
    body = {"images": [png(image) for image in images], "mask": "cut", "ratio": 0.25, "x": 0.5, "y": 0.25}
    response = client.post("/mix", json=body)
    assert response.status_code == 200, response.text
    content = response.json()
    seen = np.asarray(Image.open(io.BytesIO(base64.b64decode(content["picture"].partition(",")[2]))))
    box = np.zeros((32, 32, 1), bool)
    box[0:16, 8:24] = True  # 16 x 16 pixels around row 8 and column 16
    assert np.array_equal(seen, np.where(box, images[0], images[1]))
    assert content["ratio"] == 0.25
    direct = mix(net, net.about, images, Mixing("cut", 0.25, 0.5, 0.25), top=5)
    assert content["heads"][1]["classes"][0]["probability"] == pytest.approx(
        direct["heads"][1]["classes"][0]["probability"], abs=1e-5
    )


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"mask": "cutt"}, "did you mean 'cut'"),
        ({"ratio": 1.5}, "ratio"),
        ({"x": "left"}, "x"),
        ({"seed": -1}, "seed"),
        ({"images": ["aa"]}, "images"),
        ({"images": ["aa", "aa", "aa"]}, "images"),
        ({"size": 3}, "size"),
    ],
)
def test_a_mixture_that_cannot_be_made_is_refused(change: dict[str, object], word: str, client: httpx.Client) -> None:
    body = {"images": [png(image) for image in pair()], **change}
    response = client.post("/mix", json=body)
    assert (response.status_code, word in response.json()["error"]) == (422, True), response.text
