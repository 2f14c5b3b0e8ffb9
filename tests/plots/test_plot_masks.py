"""What the galleries of masks and weights show, and what their page in the docs says."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from mixmo import UserError
from mixmo.data.types import Dataset
from mixmo.mixing.masks import MASKS
from mixmo.plots import loss_weights, masks

PAGE = Path(__file__).parents[2] / "docs" / "concepts.md"


def test_every_mask_on_the_two_images(digits: Dataset) -> None:
    first, second, names = masks.two_images(digits)
    assert names[0] != names[1]
    gallery = masks.gallery(first, second)
    assert list(gallery) == ["linear", *MASKS]
    for cells in gallery.values():
        assert [cell.kappa for cell in cells] == list(masks.RATIOS)
        for cell in cells:
            assert cell.area == pytest.approx(cell.mask.mean().item())
            for row in range(8):
                for column in range(8):
                    share = cell.mask[row, column].item()
                    mixed = share * first[row, column] + (1 - share) * second[row, column]
                    torch.testing.assert_close(cell.pixels[row, column], mixed)
    for name in MASKS:
        assert all(set(cell.mask.flatten().tolist()) <= {0.0, 1.0} for cell in gallery[name])


def test_same_draw_same_gallery() -> None:
    first, second = torch.rand(2, 32, 32, 3)
    one, two, other = (masks.gallery(first, second, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(one["cow"][2].mask, two["cow"][2].mask)
    assert not torch.equal(one["cow"][2].mask, other["cow"][2].mask)


def test_masks_that_do_not_fit_are_left_out() -> None:
    gallery = masks.gallery(torch.zeros(6, 6, 1), torch.ones(6, 6, 1))
    assert "patchup" not in gallery
    assert "cut" in gallery


def test_images_by_number(digits: Dataset) -> None:
    first, second, names = masks.two_images(digits, (3, 5))
    torch.testing.assert_close(first, digits.test.images[3] / 255)
    torch.testing.assert_close(second, digits.test.images[5] / 255)
    assert names == [digits.classes[digits.test.labels[n]] for n in (3, 5)]
    for number in (-1, 360):
        with pytest.raises(UserError, match="test images 0 to 359"):
            masks.two_images(digits, (0, number))


def test_outline_lies_between_different_pixels() -> None:
    mask = torch.zeros(4, 4)
    mask[1:3, 1:3] = 1
    segments = masks.border(mask)
    assert len(segments) == 8  # the perimeter of a 2 x 2 square
    assert {abs(coordinate) % 1 for segment in segments for point in segment for coordinate in point} == {0.5}


def test_curves_by_formula(reference: dict[str, np.ndarray]) -> None:
    kappa, by_root = loss_weights.curves()
    assert list(by_root) == [1, 2, 3, 4, 10, math.inf]
    for r, curve in by_root.items():
        power = 0 if math.isinf(r) else 1 / r
        for k, weight in zip(kappa.tolist(), curve.tolist(), strict=True):
            assert weight == pytest.approx(2 * k**power / (k**power + (1 - k) ** power), abs=1e-9)
    for r, theirs in zip(reference["weights/r"], reference["weights/w2"], strict=True):
        grid, curve = loss_weights.curves((float(r),), 20001)
        at = np.interp(reference["weights/kappa"], grid, curve[float(r)])
        np.testing.assert_allclose(at, theirs[:, 0], atol=2e-4)


def test_the_curve_in_use_is_marked() -> None:
    """Each line is its curve, from end to end; r = 3 is drawn thicker and over the others, which are alike."""
    axes = loss_weights.draw().axes[0]
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert names == ["$r = 1$", "$r = 2$", "$r = 3$", "$r = 4$", "$r = 10$", r"$r \to \infty$"]
    kappa, by_root = loss_weights.curves()
    assert (kappa[0], kappa[-1]) == (0, 1)
    *lines, middle = axes.lines
    for line, curve in zip(lines, by_root.values(), strict=True):
        np.testing.assert_array_equal(line.get_xydata(), torch.stack((kappa, curve), 1))
    assert [line.get_color() for line in lines] == list(loss_weights.SHADES)
    assert middle.get_xdata() == [0.5, 0.5]
    assert {(line.get_linewidth(), line.get_zorder()) for line in lines if line is not lines[2]} == {(1.4, 3)}
    assert lines[2].get_linewidth() > 1.4
    assert lines[2].get_zorder() > 3 > middle.get_zorder()
    assert (axes.get_xlim(), axes.get_ylim()) == ((0, 1), (0, 2))
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0", "0.25", "0.5", "0.75", "1"]


def test_the_page_names_every_mask_and_its_area() -> None:
    """The table of realised areas in docs/concepts.md, drawn again."""
    page = PAGE.read_text().partition("## The masks")[2]
    rows = re.findall(r"^\| (\w+) +\|(.*)\|$", page, re.MULTILINE)[1:]
    assert [name for name, _ in rows] == list(MASKS)
    for name, cells in rows:
        assert f"**{name}**" in page
        for kappa, cell in zip((0.1, 0.3, 0.5, 0.7, 0.9), cells.split("|"), strict=True):
            mean, std = (float(number) for number in cell.split("±"))
            u = torch.rand(2000, MASKS[name].uniforms(32, 32), generator=torch.Generator().manual_seed(1))
            area = MASKS[name].draw(torch.full((2000,), kappa), u, 32, 32).mean((1, 2))
            assert area.mean().item() == pytest.approx(mean, abs=0.015)
            assert area.std().item() == pytest.approx(std, abs=0.015)


def test_the_pictures_of_the_page_are_small() -> None:
    for name, limit in (("images/masks.png", 400_000), ("images/weights.png", 100_000)):
        assert f"({name})" in PAGE.read_text()
        assert 10_000 < (PAGE.parent / name).stat().st_size < limit
