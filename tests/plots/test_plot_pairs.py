"""What `mixmo plot pairs` shows is what training does."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from mixmo import UserError
from mixmo.data.types import Dataset
from mixmo.plots.pairs import note, prepare, rows
from mixmo.recipes import METHODS, named

CUT = named("digits/cut-mixmo").replace(batch_size=32)


def number_of(image: Tensor, digits: Dataset) -> int:
    """Which training image this is."""
    same = ((digits.train.images.float() / 255 - image).abs() < 1e-3).flatten(1).all(1)
    (found,) = same.nonzero().flatten().tolist()
    return int(found)


def test_from_the_data_set_to_the_mixed_input(digits: Dataset) -> None:
    sheet = prepare(CUT, digits)
    assert list(sheet.stages) == ["raw", "cropped"]
    assert sheet.shares is not None
    torch.testing.assert_close(sheet.shares.sum(0), torch.ones(6, 8, 8))
    for n in range(6):
        for m in (0, 1):
            raw, cropped = (stage[m, n] for stage in sheet.stages.values())
            label = digits.classes[digits.train.labels[number_of(raw, digits)]]
            kappa = sheet.shares[:, n].mean((1, 2)) ** (1 / 3)
            weight = (2 * kappa[m] / kappa.sum()).item()
            assert sheet.captions[m][n] == f"{label}\nweight {weight:.2f}"
            padded = torch.nn.functional.pad(raw, (0, 0, 1, 1, 1, 1))
            windows = [padded[i : i + 8, j : j + 8] for i in range(3) for j in range(3)]
            assert any(torch.allclose(cropped, window, atol=1e-3) for window in windows)


def test_raw_images_are_not_flipped(digits: Dataset) -> None:
    raw, flipped = prepare(CUT.replace(crop=0, flip=True), digits).stages.values()
    numbers = [number_of(image, digits) for image in raw.flatten(0, 1)]
    both = zip(raw.flatten(0, 1), flipped.flatten(0, 1), strict=True)
    turned = [torch.equal(after, before.flip(1)) for before, after in both]
    assert len(numbers) == 12
    assert 0 < sum(turned) < 12


def test_every_draw_shows_a_mask(digits: Dataset) -> None:
    """Though in training only half of the batches have one."""
    for seed in range(6):
        shares = prepare(CUT, digits, seed=seed).shares
        assert shares is not None
        assert shares.unique().tolist() == [0, 1]


def test_lines_of_images(digits: Dataset) -> None:
    sheet = prepare(CUT, digits)
    lines = rows(sheet)
    titles = ["raw $x_0$", "raw $x_1$", "cropped $x_0$", "cropped $x_1$", "shares", "mixed"]
    assert [line.title for line in lines] == titles
    assert sheet.shares is not None
    inside = sheet.shares[0].bool()
    mixed = lines[-1].images
    torch.testing.assert_close(mixed[inside], lines[2].images[inside])
    torch.testing.assert_close(mixed[~inside], lines[3].images[~inside])
    labels = lines[-2].labels
    assert labels is not None
    assert labels[0].split() == [f"{share:.2f}" for share in sheet.shares[:, 0].mean((1, 2)).tolist()]


def test_pixel_augmentation_is_a_stage(digits: Dataset) -> None:
    sheet = prepare(CUT.replace(pixel="cutmix", pixel_p=1.0, augmix=True), digits)
    assert list(sheet.stages) == ["raw", "cropped", "AugMix", "cutmix"]
    images = list(sheet.stages.values())
    for before, after in pairwise(images):
        assert not torch.equal(before, after)
    several = [text for head in sheet.captions for text in head if text.count("\n") > 1]
    assert several
    for text in several:
        assert sum(float(line.split()[0]) for line in text.split("\n")[:-1]) == pytest.approx(1, abs=0.011)


def test_coarse_features_have_shares_of_image_size(digits: Dataset) -> None:
    sheet = prepare(CUT.replace(model="preactresnet", depth=18, width=1), digits)
    assert sheet.shares is not None
    assert sheet.shares.shape == (2, 6, 8, 8)
    blocks = sheet.shares.unfold(2, 2, 2).unfold(3, 2, 2).flatten(4)
    assert torch.equal(blocks.amax(4), blocks.amin(4))  # of 2 x 2 pixels, one feature each


@pytest.mark.parametrize("method", METHODS)
def test_pairs_of_every_method_are_drawn(digits: Dataset, method: str) -> None:
    recipe = named(f"digits/{method}")
    sheet = prepare(recipe, digits, shown=4)
    lines = rows(sheet)
    assert all(line.images.shape == (4, 8, 8, 3) for line in lines)
    assert all(line.images.min() >= 0 and line.images.max() <= 1 for line in lines)
    assert (sheet.shares is None) == (recipe.members == 1 or recipe.mask == "concat")
    assert len(sheet.captions) == (recipe.heads or recipe.members)
    inside = {recipe.feature_mixing, recipe.saliency} - {"none"}  # what the network alone can show
    assert all(name in note(recipe) for name in inside)


def test_a_mask_that_does_not_fit(digits: Dataset) -> None:
    with pytest.raises(UserError, match="needs features"):
        prepare(CUT.replace(mask="patchup", model="preactresnet", depth=18, width=1), digits)
