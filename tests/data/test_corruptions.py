"""The CIFAR-C-style corruptions: against the program that made CIFAR-C, against loops and libraries, by statistics."""

import colorsys
import math
from io import BytesIO
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import scipy.ndimage
import torch
from PIL import Image
from torch import Tensor

from mixmo.data.corrupted import COMMON, EXTRA
from mixmo.data.corruptions import CORRUPTIONS, SEVERITIES, blur, corrupt, digital, separable, spatter, weather
from mixmo.data.corruptions.base import Draw
from mixmo.utils.errors import UserError

# What make_cifar_c.py of hendrycks/robustness (commit 8190fe329f5f) gave for `image`, a drawing of gradients, edges,
# greys, black and white, after np.random.seed(severity), at severities 1 to 5: uint8 (5, 32, 32, 3) each. It ran with
# OpenCV 5.0, scikit-image 0.26, scipy 1.17, ImageMagick 6.9.11 and numpy 2.4, with four names of their old versions
# replaced by today's.
REFERENCE = Path(__file__).with_name("corruptions_reference.npz")
DETERMINISTIC = ["defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate", "gaussian_blur", "saturate"]
DRAWN = ["glass_blur", "motion_blur", "snow", "fog", "elastic_transform", "spatter"]


@pytest.fixture(scope="module")
def reference() -> dict[str, np.ndarray]:
    with np.load(REFERENCE, allow_pickle=False) as arrays:
        return dict(arrays)


class Replay(Draw):
    """The numbers that a seeded numpy would draw for one image, in the order in which the published code draws them."""

    def __init__(self, seed: int) -> None:
        super().__init__(torch.Generator(), torch.device("cpu"))
        self.random = np.random.RandomState(seed)

    def normal(self, shape: tuple[int, ...]) -> Tensor:
        return torch.from_numpy(self.random.normal(size=shape[1:])).float()[None]

    def uniform(self, low: float, high: float, shape: tuple[int, ...]) -> Tensor:
        return torch.from_numpy(np.asarray(self.random.uniform(low, high, size=shape[1:]))).float()[None]

    def integers(self, low: int, high: int, shape: tuple[int, ...]) -> Tensor:
        _, height, width, _ = shape  # only glass_blur draws these: from the last pixel back to the first
        pairs = self.random.randint(low, high, size=(height * width, 2))[::-1].copy()
        return torch.from_numpy(pairs.reshape(1, height, width, 2))


@pytest.mark.parametrize("severity", SEVERITIES)
@pytest.mark.parametrize("name", DETERMINISTIC + DRAWN)
def test_agrees_with_the_published_program(
    reference: dict[str, np.ndarray], name: str, severity: int, monkeypatch: pytest.MonkeyPatch
):
    """Given the same draws: no value differs by more than 2 of 255, and few by 1, where a fraction was cut off."""
    monkeypatch.setattr("mixmo.data.corruptions.Draw", lambda generator, device: Replay(severity))
    image = torch.from_numpy(reference["image"])[None]
    ours = corrupt(image, name, severity, torch.Generator())[0].int().numpy()
    difference = np.abs(ours - reference[name][severity - 1].astype(int))
    assert difference.max() <= 2
    assert difference.mean() <= 0.15
    assert np.abs(ours - reference["image"].astype(int)).mean() > 8 * difference.mean()


def pictures(samples: int, height: int, width: int) -> Tensor:
    """Smooth colours with a hard edge, all different."""
    y, x = torch.meshgrid(torch.arange(height) / height, torch.arange(width) / width, indexing="ij")
    phase = torch.arange(samples).reshape(-1, 1, 1, 1) + torch.tensor([0.0, 2.0, 4.0])
    waves = 0.5 + 0.4 * torch.sin(phase + 9 * x[None, :, :, None] + 6 * (y[None, :, :, None] + torch.sin(phase)) ** 2)
    waves[:, height // 4 : height // 2, width // 3 : 2 * width // 3] *= 0.3
    return (255 * waves).to(torch.uint8)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def distortion(images: Tensor, name: str, severity: int, seed: int = 0) -> float:
    return (corrupt(images, name, severity, seeded(seed)).float() - images.float()).abs().mean().item()


def test_the_published_names():
    assert set(CORRUPTIONS) == {*COMMON, *EXTRA}


@pytest.mark.parametrize("name", list(CORRUPTIONS))
def test_every_corruption_has_a_docstring(name: str):
    line = (CORRUPTIONS[name].__doc__ or "").splitlines()[0]
    assert 20 < len(line) < 120


@pytest.mark.parametrize("size", [(32, 32), (64, 64), (24, 40), (8, 8)])
@pytest.mark.parametrize("name", list(CORRUPTIONS))
def test_every_corruption_keeps_shape_and_type_and_is_seeded(name: str, size: tuple[int, int]):
    images = pictures(3, *size)
    before = images.clone()
    for severity in SEVERITIES:
        first = corrupt(images, name, severity, seeded())
        assert first.shape == images.shape
        assert first.dtype == torch.uint8
        assert torch.equal(images, before)
        assert torch.equal(first, corrupt(images, name, severity, seeded()))
    assert not torch.equal(first, images)


@pytest.mark.parametrize("name", list(CORRUPTIONS))
def test_equal_images_are_corrupted_differently(name: str):
    """Which depend on the seed; a deterministic corruption treats them alike."""
    images = pictures(1, 32, 32).repeat(2, 1, 1, 1)
    first, second = corrupt(images, name, 5, seeded())
    random = name not in (*DETERMINISTIC, "jpeg_compression")
    assert torch.equal(first, second) != random
    assert torch.equal(corrupt(images, name, 5, seeded(1))[0], first) != random


GROWING = [
    name for name in CORRUPTIONS if name not in ("elastic_transform", "frost", "glass_blur", "saturate", "spatter")
]


@pytest.mark.parametrize("name", GROWING)
def test_distortion_grows_with_severity(name: str):
    images = pictures(64, 32, 32)
    levels = [distortion(images, name, severity) for severity in SEVERITIES]
    # Motion blur of severity 4 is longer than that of 3 and no wider: on few images either may come out ahead.
    slack = 1.1 if name == "motion_blur" else 1.0
    assert all(low < slack * high for low, high in pairwise(levels))
    assert levels[4] > 1.4 * levels[0]


def test_severities_that_do_not_grow_by_design():
    """As published: a change of kind between severities, or one constant up and another down."""
    images = pictures(64, 32, 32)
    level = {name: [distortion(images, name, s) for s in SEVERITIES] for name in set(CORRUPTIONS) - set(GROWING)}
    assert level["glass_blur"][3] > 1.3 * level["glass_blur"][2]  # a second pass
    assert level["frost"][1] > level["frost"][0]
    assert level["spatter"][2] > level["spatter"][1] > level["spatter"][0]  # water
    assert level["spatter"][4] > level["spatter"][3]  # mud
    assert level["saturate"][1] > level["saturate"][0]  # less colour
    assert level["saturate"][4] > level["saturate"][3] > level["saturate"][2]  # more
    assert level["elastic_transform"][0] > level["elastic_transform"][4]  # wilder, but not so far


def noise(name: str, severity: int, level: int) -> np.ndarray:
    """What becomes of many pixels of one level, in [0, 1]."""
    images = torch.full((30, 32, 32, 3), level, dtype=torch.uint8)
    return corrupt(images, name, severity, seeded(severity)).double().numpy().ravel() / 255


CUT = 0.5 / 255  # the mean that is lost by cutting fractions off


@pytest.mark.parametrize(("severity", "c"), list(enumerate((0.04, 0.06, 0.08, 0.09, 0.10), 1)))
def test_gaussian_noise_has_its_standard_deviation(severity: int, c: float):
    values = noise("gaussian_noise", severity, 128)
    assert abs(values.mean() - (128 / 255 - CUT)) < 0.001
    assert abs(values.std() / c - 1) < 0.015
    central = (values - values.mean()) / values.std()
    assert abs((central**4).mean() - 3) < 0.1


@pytest.mark.parametrize(("severity", "c"), list(enumerate((0.06, 0.10, 0.12, 0.16, 0.20), 1)))
def test_speckle_noise_is_proportional(severity: int, c: float):
    for level in (60, 120):
        values = noise("speckle_noise", severity, level)
        assert abs(values.mean() - (level / 255 - CUT)) < 0.001
        assert abs(values.std() / (c * level / 255) - 1) < 0.02
    assert not noise("speckle_noise", severity, 0).any()


@pytest.mark.parametrize(("severity", "c"), list(enumerate((500, 250, 100, 75, 50), 1)))
def test_shot_noise_has_the_variance_of_photons(severity: int, c: int):
    for level in (60, 120):
        values = noise("shot_noise", severity, level)
        assert abs(values.mean() - (level / 255 - CUT)) < 0.0015
        assert abs(values.var() / (level / 255 / c) - 1) < 0.03
    assert set(np.unique(np.round(noise("shot_noise", 5, 3) * 255))) <= {int(255 * k / 50) for k in range(10)}


@pytest.mark.parametrize(("severity", "c"), list(enumerate((0.01, 0.02, 0.03, 0.05, 0.07), 1)))
def test_impulse_noise_changes_its_share_of_values(severity: int, c: float):
    values = noise("impulse_noise", severity, 100) * 255
    pepper, salt, kept = ((values == level).mean() for level in (0, 255, 100))
    assert pepper + salt + kept == 1
    assert abs(pepper - c / 2) < 0.002
    assert abs(salt - c / 2) < 0.002


@pytest.mark.parametrize(("sigma", "truncate"), [(0.05, 4.0), (0.4, 4.0), (1.0, 4.0), (6.4, 3.0), (30.0, 3.0)])
def test_gaussian_is_that_of_scipy(sigma: float, truncate: float):
    x = torch.rand(1, 20, 33, 2, generator=seeded(), dtype=torch.float64)
    for mirror, mode in ((False, "nearest"), (True, "reflect")):
        theirs = scipy.ndimage.gaussian_filter(x[0].numpy(), (sigma, sigma, 0), mode=mode, truncate=truncate)
        assert np.allclose(separable.gaussian(x, sigma, truncate, mirror)[0], theirs, atol=1e-12)


@pytest.mark.parametrize("factor", [1.0, 1.01, 1.07, 1.25, 1.75, 2.25])
@pytest.mark.parametrize("side", [32, 45, 64])
def test_zoom_is_that_of_scipy(factor: float, side: int):
    x = torch.rand(1, side, side, 1, generator=seeded(), dtype=torch.float64)
    kept = math.ceil(side / factor)
    first = (side - kept) // 2
    centre = x[0, first : first + kept, first : first + kept, 0].numpy()
    # scipy's own last pixel may fall outside by rounding and be black; with mode="nearest" it may not.
    theirs = scipy.ndimage.zoom(centre, factor, order=1, mode="nearest")
    trim = (len(theirs) - side) // 2
    theirs = theirs[trim : trim + side, trim : trim + side]
    assert np.allclose(separable.zoom(x, factor)[0, :, :, 0], theirs, atol=1e-9)


@pytest.mark.parametrize("severity", SEVERITIES)
def test_pixelate_is_that_of_pil(severity: int):
    images = pictures(2, 40, 64)
    c = (0.95, 0.9, 0.85, 0.75, 0.65)[severity - 1]
    for ours, image in zip(corrupt(images, "pixelate", severity, seeded()), images, strict=True):
        small = Image.fromarray(image.numpy()).resize((int(64 * c), int(40 * c)), Image.Resampling.BOX)
        assert np.array_equal(ours.numpy(), np.asarray(small.resize((64, 40), Image.Resampling.BOX)))


@pytest.mark.parametrize(("severity", "quality"), list(enumerate((80, 65, 58, 50, 40), 1)))
def test_jpeg_is_that_of_pil(severity: int, quality: int):
    images = pictures(2, 32, 48)
    for ours, image in zip(corrupt(images, "jpeg_compression", severity, seeded()), images, strict=True):
        file = BytesIO()
        Image.fromarray(image.numpy()).save(file, "JPEG", quality=quality)
        assert np.array_equal(ours.numpy(), np.asarray(Image.open(file)))


def test_box_resizing_is_that_of_pil_at_every_size():
    """Smaller and larger; which pixels are under a new one is a matter of rounding where their rims coincide."""
    for size in range(8, 33):
        pixels = Image.fromarray(np.eye(size, dtype=np.float32))
        for to in range(1, 33):
            theirs = np.asarray(pixels.resize((size, to), Image.Resampling.BOX))
            assert np.allclose(separable.box_matrix(size, to), theirs, atol=1e-6), (size, to)


def by_pixel(images: Tensor, name: str, severity: int) -> np.ndarray:
    """Brightness or saturation by Python's own HSV."""
    out = np.empty(images.shape)
    add = (0.05, 0.1, 0.15, 0.2, 0.3)[severity - 1]
    a, b = ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2))[severity - 1]
    for where in np.ndindex(*images.shape[:3]):
        h, s, v = colorsys.rgb_to_hsv(*(images[where].double() / 255).tolist())
        if name == "brightness":
            v = min(v + add, 1)
        else:
            s = min(max(a * s + b, 0), 1)
        out[where] = colorsys.hsv_to_rgb(h, s, v)
    return out * 255


@pytest.mark.parametrize("severity", SEVERITIES)
@pytest.mark.parametrize("name", ["brightness", "saturate"])
def test_brightness_and_saturation_are_those_of_colorsys(name: str, severity: int):
    images = torch.randint(0, 256, (1, 16, 16, 3), generator=seeded(), dtype=torch.uint8)
    images[0, 0] = torch.arange(0, 256, 17, dtype=torch.uint8)[:, None]  # greys, black and white included
    images[0, 1, :3] = torch.tensor([[255, 0, 0], [0, 9, 0], [7, 7, 255]], dtype=torch.uint8)
    images[0, 1, 3:6] = torch.tensor([[1, 0, 0], [0, 1, 1], [100, 100, 101]], dtype=torch.uint8)  # nearly black or grey
    ours = corrupt(images, name, severity, seeded()).numpy()
    assert (by_pixel(images, name, severity) - ours).max() < 1.001
    assert (by_pixel(images, name, severity) - ours).min() > -0.01


def test_contrast_is_computed_as_by_hand():
    images = torch.zeros(2, 8, 8, 3, dtype=torch.uint8)
    images[0, :4] = 200  # mean 100 in the first, 0 in the second
    ours = corrupt(images, "contrast", 2, seeded())
    assert ours[0, 0, 0].tolist() == [150] * 3
    assert ours[0, 7, 7].tolist() == [50] * 3
    assert not ours[1].any()


def test_zoom_blur_is_computed_as_by_hand():
    """The mean of the image itself once more and its enlargements; numpy decides whether 1.06 is one of them."""
    x = torch.rand(1, 32, 32, 3, generator=seeded())
    factors = np.arange(1, 1.06, 0.01)
    expected = (x + sum(separable.zoom(x, factor) for factor in factors)) / (len(factors) + 1)
    assert torch.allclose(blur.zoom_blur(x, 1, Replay(0)), expected, atol=1e-6)


@pytest.mark.parametrize("radius", [0.3, 1.0, 1.5])
def test_defocus_is_that_of_scipy(radius: float):
    severity, sigma = {0.3: (1, 0.4), 1.0: (4, 0.2), 1.5: (5, 0.1)}[radius]
    x = torch.rand(1, 20, 30, 3, generator=seeded())
    wide = np.arange(-8, 9)
    disk = (wide[:, None] ** 2 + wide**2 <= radius**2).astype(float)
    kernel = scipy.ndimage.gaussian_filter(disk / disk.sum(), sigma, radius=1)  # three taps
    theirs = np.stack([scipy.ndimage.correlate(x[0, :, :, c].numpy(), kernel, mode="mirror") for c in range(3)], 2)
    assert np.allclose(blur.defocus_blur(x, severity, Replay(0))[0], theirs, atol=1e-6)


@pytest.mark.parametrize("degrees", [-135.0, -90.0, -45.0, -30.0, 0.0, 17.0, 45.0])
def test_smear_is_that_of_a_plain_loop(degrees: float):
    x = torch.rand(1, 12, 17, 2, generator=seeded(), dtype=torch.float64)
    radius, sigma = 3, 1.5
    weights = [math.exp(-(t**2) / (2 * sigma**2)) for t in range(2 * radius + 1)]
    expected = np.zeros((12, 17, 2))
    for row, column in np.ndindex(12, 17):
        for t, weight in enumerate(weights):
            r = row + math.ceil(t * math.sin(math.radians(degrees)) - 0.5)
            c = column + math.ceil(t * math.cos(math.radians(degrees)) - 0.5)
            expected[row, column] += weight / sum(weights) * x[0, min(max(r, 0), 11), min(max(c, 0), 16)].numpy()
    ours = blur.smear(x, radius, sigma, torch.tensor([degrees]))[0].numpy() * 255
    assert np.abs(ours - np.floor(ours + 1e-6)).max() < 1e-6  # whole levels
    assert (expected * 255 - ours).max() < 1
    assert (expected * 255 - ours).min() > -0.003


def test_smear_of_each_image_at_its_own_angle():
    x = torch.rand(3, 16, 16, 1, generator=seeded())
    degrees = torch.tensor([0.0, 20.0, -100.0])
    together = blur.smear(x, 4, 2.0, degrees)
    for index in range(3):
        assert torch.equal(together[index], blur.smear(x[index : index + 1], 4, 2.0, degrees[index : index + 1])[0])


def test_glass_blur_is_that_of_the_published_loop():
    """Pixel by pixel, with the exchange of numpy views that is a copy; two passes."""
    height, width = 20, 26
    image = pictures(1, height, width)
    x = scipy.ndimage.gaussian_filter(image[0].numpy() / 255, (0.25, 0.25, 0))
    x = np.uint8(x * 255 + 1e-3)
    random = np.random.RandomState(3)
    for _ in range(2):
        for row in range(height - 1, 1, -1):
            for column in range(width - 1, 1, -1):
                dx, dy = random.randint(-1, 1, size=2)
                x[row, column], x[row + dy, column + dx] = x[row + dy, column + dx], x[row, column]
    expected = scipy.ndimage.gaussian_filter(x / 255, (0.25, 0.25, 0))
    assert np.allclose(blur.glass_blur(image.double() / 255, 4, Replay(3))[0], expected, atol=1e-9)


@pytest.mark.parametrize("side", [8, 32])
def test_plasma_is_that_of_a_plain_loop(side: int):
    """Point by point on the torus."""
    random = np.random.RandomState(5)
    grid, step, w = np.zeros((side, side)), side, 100.0
    while step >= 2:
        half = step // 2
        noises = [w * random.uniform(-w, w, size=(side // step, side // step)) for _ in range(3)]
        for i in range(0, side, step):
            for j in range(0, side, step):
                corners = [grid[(i + a) % side, (j + b) % side] for a in (0, step) for b in (0, step)]
                grid[i + half, j + half] = sum(corners) / 4 + noises[0][i // step, j // step]
        for noise_, down, right in ((noises[1], 0, half), (noises[2], half, 0)):
            for i in range(0, side, step):
                for j in range(0, side, step):
                    row, column = i + down, j + right
                    around = ((half, 0), (-half, 0), (0, half), (0, -half))
                    total = sum(grid[(row + a) % side, (column + b) % side] for a, b in around)
                    grid[row, column] = total / 4 + noise_[i // step, j // step]
        step, w = half, w / 2.5
    expected = (grid - grid.min()) / (grid - grid.min()).max()
    assert np.allclose(weather.plasma(1, side, 2.5, Replay(5))[0], expected, atol=1e-5)


def test_plasma_has_a_power_of_two_as_side():
    draw = Draw(seeded(), torch.device("cpu"))
    assert weather.plasma(2, 40, 2.0, draw).shape == (2, 64, 64)
    assert weather.plasma(2, 64, 2.0, draw).shape == (2, 64, 64)


@pytest.mark.parametrize(("severity", "c"), [(1, 0.2), (2, 0.5), (3, 0.75), (4, 1.0), (5, 1.5)])
def test_fog_keeps_the_brightest_value(severity: int, c: float):
    """(x + c cloud) m / (m + c), m being the largest value of x: the same cloud is found in images of any m."""

    def cloud(m: float) -> Tensor:
        x = torch.rand(3, 24, 40, 3, generator=seeded(1)) * m
        x[:, 0, 0] = m
        return (weather.fog(x, severity, Draw(seeded(), torch.device("cpu"))) * (m + c) / m - x) / c

    first = cloud(1.0)
    assert first.amin() >= -1e-5
    assert 0.9 < first.amax() <= 1 + 1e-5
    assert torch.allclose(cloud(0.3), first, atol=1e-4)


@pytest.mark.parametrize(
    ("severity", "a", "b"), [(1, 1.0, 0.2), (2, 1.0, 0.3), (3, 0.9, 0.4), (4, 0.85, 0.4), (5, 0.75, 0.45)]
)
def test_frost_by_the_published_shares(severity: int, a: float, b: float):
    """Of the image and of the pane, which is the same at every severity; the one of severity 4 is measured below."""

    def frosted(x: Tensor, severity: int) -> Tensor:
        return weather.frost(x, severity, Draw(seeded(), torch.device("cpu")))

    image = torch.rand(20, 24, 40, 3, generator=seeded(1))
    black = torch.zeros_like(image)
    assert torch.allclose(frosted(image, severity) - frosted(black, severity), a * image, atol=1e-6)
    assert torch.allclose(frosted(black, severity) / b, frosted(black, 4) / 0.4, atol=1e-6)


def test_frost_has_the_statistics_of_the_photographs():
    """Over black, frost is b times the pane: its colours and contrasts are those measured on the photographs."""
    panes = corrupt(torch.zeros(400, 32, 32, 3, dtype=torch.uint8), "frost", 4, seeded()).double() / 0.4
    means = panes.mean((1, 2))
    nearest = torch.cdist(means, torch.tensor(weather.FROST).double()[:, :3]).min(1)
    assert nearest.values.max() < 8  # clipping moves the lightest ones by some levels
    dark = panes[nearest.indices == 3].mean(3)
    assert len(dark) > 40
    assert abs(dark.std((1, 2)).mean() - 29) < 1.5
    residual = dark - dark.mean((1, 2), keepdim=True)
    neighbour = (residual[:, :, 1:] * residual[:, :, :-1]).mean() / residual.square().mean()
    assert 0.45 < neighbour < 0.65  # the photographs': 0.48 to 0.69


@pytest.mark.parametrize(("height", "width"), [(48, 48), (36, 60), (50, 36)])
def test_elastic_transform_is_that_of_scipy(height: int, width: int):
    """The affine map from its three points, then the displacement, both by map_coordinates."""
    severity, side = 3, min(height, width)
    alpha, sigma, jitter = (share * side for share in digital.ELASTIC[severity - 1])
    image = pictures(1, height, width).double() / 255
    random = np.random.RandomState(7)
    third = side // 3
    points = np.array([width / 2, height / 2]) + third * np.array([[1, 1], [1, -1], [-1, -1]])  # as (x, y)
    moved = points + random.uniform(-jitter, jitter, size=(3, 2))
    back = np.linalg.solve(np.c_[moved, np.ones(3)], points)
    y, x = np.mgrid[0:height, 0:width]
    at = np.c_[x.ravel(), y.ravel(), np.ones(height * width)] @ back
    shift = [
        alpha * scipy.ndimage.gaussian_filter(random.uniform(-1, 1, size=(height, width)), sigma, truncate=3)
        for _ in range(2)
    ]
    for channel in range(3):
        plane = image[0, :, :, channel].numpy()
        affine = scipy.ndimage.map_coordinates(plane, [at[:, 1], at[:, 0]], order=1, mode="mirror")
        where = [y + shift[1], x + shift[0]]
        expected = scipy.ndimage.map_coordinates(affine.reshape(height, width), where, order=1, mode="reflect")
        ours = digital.elastic_transform(image.float(), severity, Replay(7))[0, :, :, channel].numpy()
        assert np.allclose(ours, expected, atol=2e-4)


def test_chamfer_is_the_shortest_path():
    """All pairs: along a column or row, diagonals and knight's moves cover any vector in one best way."""
    edge = torch.rand(2, 14, 19, generator=seeded()) < 0.03
    ours = spatter.chamfer(edge).numpy()
    for n in range(2):
        for row, column in np.ndindex(14, 19):
            lengths = []
            for r, c in edge[n].nonzero().tolist():
                short, long = sorted((abs(row - r), abs(column - c)))
                if long >= 2 * short:
                    lengths.append(2.1969 * short + (long - 2 * short))
                else:
                    lengths.append(2.1969 * (long - short) + 1.4 * (2 * short - long))
            assert abs(ours[n, row, column] - min(lengths)) < 1e-4
        exact = scipy.ndimage.distance_transform_edt(~edge[n].numpy())
        assert (np.abs(ours[n] - exact) <= 0.03 * exact).all()
    assert spatter.chamfer(torch.zeros(1, 8, 8, dtype=torch.bool)).isinf().all()


def test_equalise_is_that_of_a_plain_loop():
    levels = torch.randint(0, 9, (3, 10, 10), generator=seeded()) * 20
    levels[2] = 7  # one level alone stays
    ours = spatter.equalise(levels.float())
    for n in range(2):
        values = levels[n].flatten().tolist()
        lowest = sum(value == min(values) for value in values)
        for value, found in zip(values, ours[n].flatten().tolist(), strict=True):
            up_to = sum(other <= value for other in values)
            assert found == round((up_to - lowest) * 255 / (len(values) - lowest))
    assert (ours[2] == 7).all()


def test_rims_of_a_disk_are_its_border():
    """One closed line of single pixels around it, and none elsewhere; a faint disk has none."""
    y, x = np.mgrid[0:32, 0:32]
    inside = (y - 15) ** 2 + (x - 16) ** 2 <= 64
    disk = torch.from_numpy(np.where(inside, 200.0, 0.0)).float()
    edges = spatter.rims(torch.stack([disk, disk / 16]))
    at_rim = scipy.ndimage.binary_dilation(inside, iterations=2) & ~scipy.ndimage.binary_erosion(inside, iterations=2)
    assert edges[0].numpy()[~at_rim].sum() == 0
    closed = scipy.ndimage.binary_fill_holes(edges[0].numpy())
    assert closed.sum() > 0.8 * inside.sum()
    assert 40 < edges[0].sum() < 80  # 2 pi 8 = 50
    assert not edges[1].any()


def test_spatter_without_a_drop_changes_nothing():
    class Dry(Replay):
        def normal(self, shape: tuple[int, ...]) -> Tensor:
            return torch.full(shape, -3.0)

    images = pictures(2, 32, 32)
    for severity in SEVERITIES:
        x = images.float() / 255
        assert torch.equal(spatter.spatter(x, severity, Dry(0)), x)


@pytest.mark.parametrize("severity", [0, 6, -1])
def test_an_unknown_severity_is_rejected(severity: int):
    with pytest.raises(UserError, match="severity"):
        corrupt(pictures(1, 32, 32), "fog", severity, seeded())


def test_an_unknown_corruption_suggests_the_nearest():
    with pytest.raises(UserError, match="did you mean 'fog'"):
        corrupt(pictures(1, 32, 32), "fogg", 1, seeded())


@pytest.mark.parametrize(
    "images",
    [
        torch.zeros(1, 32, 32, 3),
        torch.zeros(32, 32, 3).byte(),
        torch.zeros(1, 3, 32, 32).byte(),
        torch.zeros(1, 8, 8, 1),
    ],
)
def test_tensors_of_another_type_or_shape_are_rejected(images: Tensor):
    with pytest.raises(UserError, match="uint8"):
        corrupt(images, "fog", 1, seeded())


@pytest.mark.parametrize("size", [(7, 32), (32, 7)])
def test_small_images_are_rejected(size: tuple[int, int]):
    with pytest.raises(UserError, match="at least 8 pixels"):
        corrupt(torch.zeros(1, *size, 3).byte(), "fog", 1, seeded())
