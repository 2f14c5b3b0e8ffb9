"""Crop, flip and normalisation against PIL and plain arithmetic."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torch import Tensor

from mixmo.augment.basic import crop_flip, normalise


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


def test_one_channel() -> None:
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


def test_normalise(dataset: Tensor) -> None:
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

    index, u = torch.tensor([3, 1, 3]), torch.rand(3, 3)
    assert pipeline(dataset.to("meta"), index.to("meta"), u.to("meta")).shape == (3, 3, 12, 16)
    compiled = torch.compile(pipeline, fullgraph=True, backend="eager")
    assert torch.equal(compiled(dataset, index, u), pipeline(dataset, index, u))
