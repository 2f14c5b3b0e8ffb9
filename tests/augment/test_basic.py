"""Crop, flip and normalisation against PIL and plain arithmetic."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image, ImageOps
from torch import Tensor

import mixmo  # noqa: F401  (a torchvision built for CUDA imports on a CPU only after it)
from mixmo.augment.basic import centre, crop_flip, normalise, resized_crop, to_shape

functional = pytest.importorskip("torchvision.transforms.v2.functional")


@pytest.fixture
def dataset() -> Tensor:
    return torch.randint(1, 256, (20, 12, 16, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("pad", "flip"), [(4, True), (4, False), (1, False), (0, True)])
def test_crop_flip_equals_pil(dataset: Tensor, pad: int, flip: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    index, u = torch.randint(0, 20, (64,), generator=generator), torch.rand(64, 3, generator=generator)
    u[0], u[1] = 0.0, 1 - 2**-24
    got = crop_flip(dataset, index, u, pad, flip)
    assert got.dtype == torch.uint8
    for i in range(64):
        image = ImageOps.expand(Image.fromarray(dataset[index[i]].numpy()), border=pad, fill=0)
        top, left = int(u[i, 0] * (2 * pad + 1)), int(u[i, 1] * (2 * pad + 1))
        image = image.crop((left, top, left + 16, top + 12))
        if flip and u[i, 2] < 0.5:
            image = ImageOps.mirror(image)
        assert np.array_equal(got[i].numpy(), np.asarray(image))


def test_smaller_crops_are_uniform_over_all_places(dataset: Tensor) -> None:
    """All 5 x 9 places of an 8-pixel window in 12 x 16, as likely; half of them flipped."""
    n = 18_000
    u = torch.rand(n, 3, generator=torch.Generator().manual_seed(0))
    got = crop_flip(dataset, torch.zeros(n, dtype=torch.long), u, pad=0, size=8)
    assert got.shape == (n, 8, 8, 3)
    windows = [dataset[0, top : top + 8, left : left + 8] for top in range(5) for left in range(9)]
    windows += [window.flip(1) for window in windows]
    counts = torch.stack([(got == window).flatten(1).all(1).sum() for window in windows])
    assert counts.sum() == n
    assert (counts - n / 90).abs().max() < 5 * (n / 90) ** 0.5


@pytest.mark.parametrize(("size", "scale", "flip"), [(8, 0.08, True), (16, 0.3, False), (7, 0.99, True)])
def test_resized_crop_equals_a_loop(dataset: Tensor, size: int, scale: float, flip: bool) -> None:
    """Cut out, then resized by torch, as torchvision v2 does; to the nearest grey, up to the last bit."""
    generator = torch.Generator().manual_seed(1)
    index, u = torch.randint(0, 20, (200,), generator=generator), torch.rand(200, 5, generator=generator)
    u[0], u[1] = 0.0, 1 - 2**-24
    got = resized_crop(dataset, index, u, size, scale, flip)
    assert got.shape == (200, size, size, 3)
    assert got.dtype == torch.uint8
    for i in range(200):
        share, turn, row, column, mirror = u[i].tolist()
        area, ratio = (scale + (1 - scale) * share) * 12 * 16, math.exp(math.log(4 / 3) * (2 * turn - 1))
        h, w = min(12, round(math.sqrt(area / ratio))), min(16, round(math.sqrt(area * ratio)))
        top, left = min(int(row * (12 - h + 1)), 12 - h), min(int(column * (16 - w + 1)), 16 - w)
        part = dataset[index[i], top : top + h, left : left + w].permute(2, 0, 1)[None].double()
        expected = F.interpolate(part, (size, size), mode="bilinear", align_corners=False)[0].permute(1, 2, 0)
        plain = functional.resized_crop(
            dataset[index[i]].permute(2, 0, 1).double(), top, left, h, w, [size, size], antialias=False
        )
        torch.testing.assert_close(plain.permute(1, 2, 0), expected)
        if flip and mirror < 0.5:
            expected = expected.flip(1)
        assert (got[i].double() - expected).abs().max() <= 0.501


def test_resized_crop_of_everything_is_the_image() -> None:
    images = torch.randint(0, 256, (4, 16, 16, 3), dtype=torch.uint8)
    u = torch.full((4, 5), 0.5)
    u[:, 0] = 1.0
    assert torch.equal(resized_crop(images, torch.arange(4), u, 16, 0.08), images)


def test_resized_crops_have_at_least_one_pixel() -> None:
    images = torch.arange(4, dtype=torch.uint8).view(1, 2, 2, 1)
    u = torch.tensor([[0.0, 0.5, 0.9, 0.9, 0.9]])
    assert (resized_crop(images, torch.tensor([0]), u, 3, 0.01) == 3).all(), "the last row and column"


def test_resized_crops_have_the_drawn_areas_and_ratios() -> None:
    """A picture of its own coordinates tells where each crop lies: shares and ratios are as drawn, all is visited."""
    n, side = 4000, 128
    ramp = torch.arange(side, dtype=torch.float32).expand(side, side)
    picture = torch.stack((ramp.T, ramp, ramp), dim=-1).to(torch.uint8)[None]
    u = torch.rand(n, 5, generator=torch.Generator().manual_seed(0))
    got = resized_crop(picture, torch.zeros(n, dtype=torch.long), u, 64, 0.08, flip=False).float()
    h = got[:, -1, 0, 0] - got[:, 0, 0, 0] + 1
    w = got[:, 0, -1, 1] - got[:, 0, 0, 1] + 1
    inside = (h < side - 3) & (w < side - 3)  # an edge that was cut shows within three pixels of the border
    share = h * w / side**2
    assert (share[inside] - (0.08 + 0.92 * u[inside, 0])).abs().max() < 0.04
    assert 0.7 < (w / h)[inside].min() < 0.78
    assert 1.29 < (w / h)[inside].max() < 1.42
    assert got[:, 0, 0, 0].min() == 0
    assert got[:, -1, -1, 1].max() == side - 1


def test_centre_crops_the_middle(dataset: Tensor) -> None:
    assert torch.equal(centre(dataset, 8), dataset[:, 2:10, 4:12])
    assert centre(dataset, None) is dataset


def test_one_channel_is_cropped_and_normalised() -> None:
    digits = torch.arange(64, dtype=torch.uint8).view(1, 8, 8, 1)
    got = crop_flip(digits, torch.zeros(1, dtype=torch.long), torch.zeros(1, 3), pad=1, flip=False)
    assert got.shape == (1, 8, 8, 1)
    assert torch.equal(got[0, 1:, 1:], digits[0, :-1, :-1]), "offset 0 shows the padding at the top left"
    assert got[0, 0].sum() == got[0, :, 0].sum() == 0


def test_offsets_and_flips_are_uniform() -> None:
    """A lone bright pixel in the middle tells the offset and the flip."""
    image = torch.zeros(1, 32, 32, 1, dtype=torch.uint8)
    image[0, 16, 10] = 255
    n = 18_000
    u = torch.rand(n, 3, generator=torch.Generator().manual_seed(0))
    where = crop_flip(image, torch.zeros(n, dtype=torch.long), u).view(n, -1).int().argmax(1)
    rows, columns = where // 32, where % 32
    assert torch.bincount(rows, minlength=32)[12:21].sub(n / 9).abs().max() < 5 * (n / 9) ** 0.5
    assert rows.min() == 12
    assert rows.max() == 20
    columns_seen = torch.bincount(columns, minlength=32)
    assert columns_seen[6:15].sub(n / 18).abs().max() < 5 * (n / 18) ** 0.5
    assert columns_seen[17:26].sub(n / 18).abs().max() < 5 * (n / 18) ** 0.5
    assert columns_seen[6:15].sum() + columns_seen[17:26].sum() == n


def test_normalise_subtracts_the_mean_and_divides_by_std(dataset: Tensor) -> None:
    mean, std = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
    got = normalise(dataset, mean, std)
    assert got.shape == (20, 3, 12, 16)
    assert got.is_contiguous(memory_format=torch.channels_last)
    for channel in range(3):
        expected = (dataset[..., channel].double() / 255 - mean[channel]) / std[channel]
        torch.testing.assert_close(got[:, channel], expected.float(), rtol=1e-5, atol=1e-6)
    assert torch.equal(normalise(dataset.float(), mean, std), got)


def test_no_host_sync_and_compiles(dataset: Tensor) -> None:
    def pipeline(images: Tensor, index: Tensor, u: Tensor) -> Tensor:
        return normalise(crop_flip(images, index, u), (0.5, 0.4, 0.3), (0.2, 0.2, 0.1))

    def resized(images: Tensor, index: Tensor, u: Tensor) -> Tensor:
        return normalise(resized_crop(images, index, u, 10, 0.08), (0.5, 0.4, 0.3), (0.2, 0.2, 0.1))

    index = torch.tensor([3, 1, 3])
    for function, uniforms, shape in ((pipeline, 3, (3, 3, 12, 16)), (resized, 5, (3, 3, 10, 10))):
        u = torch.rand(3, uniforms)
        assert function(dataset.to("meta"), index.to("meta"), u.to("meta")).shape == shape
        compiled = torch.compile(function, fullgraph=True, backend="eager")
        assert torch.equal(compiled(dataset, index, u), function(dataset, index, u))


def test_to_shape_repeats_greys() -> None:
    grey = torch.randint(0, 256, (3, 8, 8, 1)).byte()
    assert torch.equal(to_shape(grey, 3, 8, 8), grey.expand(-1, -1, -1, 3))
    assert to_shape(grey, 3, 8, 8).is_contiguous()


def test_to_shape_weights_colours_as_pil_does() -> None:
    images = torch.randint(0, 256, (2, 9, 11, 3), generator=torch.Generator().manual_seed(0)).byte()
    assert to_shape(images, 1, 9, 11).dtype == torch.uint8
    for ours, image in zip(to_shape(images, 1, 9, 11), images, strict=True):
        theirs = np.asarray(Image.fromarray(image.numpy()).convert("L")).astype(int)
        assert np.abs(ours[..., 0].numpy().astype(int) - theirs).max() <= 1


@pytest.mark.parametrize("size", [(16, 24), (64, 64), (31, 7)])
def test_to_shape_resizes_as_pil_does(size: tuple[int, int]) -> None:
    images = torch.randint(0, 256, (2, 32, 32, 3), generator=torch.Generator().manual_seed(0)).byte()
    for ours, image in zip(to_shape(images, 3, *size), images, strict=True):
        theirs = np.asarray(Image.fromarray(image.numpy()).resize(size[::-1], Image.Resampling.BILINEAR)).astype(int)
        assert np.abs(ours.numpy().astype(int) - theirs).max() <= 1


def test_to_shape_keeps_images_of_that_shape() -> None:
    images = torch.randint(0, 256, (2, 32, 32, 3)).byte()
    assert torch.equal(to_shape(images, 3, 32, 32), images)
