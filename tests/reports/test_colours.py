"""The colours of curves differ for readers who do not see red, green or blue."""

import itertools
import re
from importlib.resources import files

import numpy as np
import pytest

from mixmo.reports.vega import COLOURS

STYLE = (files("mixmo.reports") / "templates" / "report.css").read_text()
# Machado, Oliveira and Fernandes (2009): full protanopia, deuteranopia and tritanopia, of linear RGB.
VISION = {
    "all colours": np.eye(3),
    "no red": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "no green": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "no blue": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}
TO_XYZ = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]


def lab(colour: str, vision: str) -> np.ndarray:
    """A colour in CIELAB as someone sees it."""
    value = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)
    seen = np.clip(np.array(VISION[vision]) @ linear, 0, 1)
    xyz = np.array(TO_XYZ) @ seen / [0.95047, 1, 1.08883]
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def palettes() -> list[list[str]]:
    found = [re.findall(r"--c\d: (#\w{6})", line) for line in STYLE.splitlines()]
    return [colours for colours in found if colours]


def test_every_theme_has_all_colours() -> None:
    assert [len(colours) for colours in palettes()] == [COLOURS] * 4  # light, dark twice, print


@pytest.mark.parametrize("vision", VISION)
def test_colours_of_curves_differ(vision: str) -> None:
    for colours in palettes():
        for one, two in itertools.combinations(colours, 2):
            assert np.linalg.norm(lab(one, vision) - lab(two, vision)) > 10, (one, two)
