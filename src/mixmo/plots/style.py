"""The style of all figures, and how they are written: without pyplot, so without windows and global state."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mixmo.storage.files import atomic_write
from mixmo.utils.errors import UserError
from mixmo.utils.text import printable

# Okabe and Ito's palette, which is colour-blind safe; member m or run i has colour i.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000")
INK = "#222222"
FAINT = "#8c8c8c"
FORMATS = ("png", "pdf", "svg")
STYLE = {
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.6,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "xtick.major.size": 2.5,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.linewidth": 1.5,
    "svg.hashsalt": "mixmo",
}


def matplotlib() -> Any:
    """Import matplotlib, or raise a UserError with the install command."""
    try:
        import matplotlib
        import matplotlib.collections
        import matplotlib.figure
        import matplotlib.ticker
    except ImportError as error:
        raise UserError("pictures need matplotlib; `pip install mixmo[plots]` adds it") from error
    return matplotlib


def figure(width: float, height: float) -> Any:
    """An empty figure of this size in inches. Draw on it inside `styled()`."""
    return matplotlib().figure.Figure(figsize=(width, height), layout="constrained", facecolor="white")


def styled() -> Any:
    return matplotlib().rc_context(STYLE)


def show_image(axes: Any, pixels: Tensor, colour: str | None = None) -> None:
    """An image (H, W, 3) or (H, W, 1) in [0, 1], its pixels as squares, without ticks; a hairline or a frame around."""
    axes.imshow(pixels.squeeze(-1).numpy(), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    axes.grid(False)
    axes.set(xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set(visible=True, linewidth=1.6 if colour else 0.5, edgecolor=colour or FAINT)


def tinted(pixels: Tensor, colour: str) -> Tensor:
    """Tint a grey image (..., H, W, 1) with a colour; return a colour image unchanged."""
    if pixels.shape[-1] != 1:
        return pixels
    return pixels * torch.tensor([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])


def row_title(axes: Any, text: str) -> None:
    axes.set_ylabel(text, rotation=0, ha="right", va="center", labelpad=8)


def run_names(paths: Sequence[Path]) -> list[str]:
    """Return the runs' names in a legend: the last part of their paths, or the whole where that is not unique.

    >>> run_names([Path("runs/cut"), Path("runs/linear")]), run_names([Path("a/cut"), Path("b/cut")])
    (['cut', 'linear'], ['a/cut', 'b/cut'])
    """
    names = [path.resolve().name for path in paths]
    return [printable(name) for name in (names if len(set(names)) == len(names) else map(str, paths))]


def check_target(path: Path, force: bool) -> None:
    """Raise a UserError if a figure cannot be written there, before it is drawn."""
    if path.suffix.removeprefix(".").lower() not in FORMATS:
        raise UserError(f"--out {path} is no {', '.join(FORMATS[:-1])} or {FORMATS[-1]} file; name it so")
    if path.is_dir() or not path.parent.is_dir():
        what = "is a folder" if path.is_dir() else f"lies in {path.parent}, which is not a folder"
        raise UserError(f"--out {path} {what}; name a file in an existing folder")
    if path.exists() and not force:
        raise UserError(f"{path} exists already; give --force to replace it, or another --out")


def save(drawn: Any, path: Path, force: bool = False) -> Path:
    """Write a figure, whole or not at all. The same figure gives the same bytes: no date and no version go in."""
    check_target(path, force)
    kind = path.suffix.removeprefix(".").lower()
    silent = {"png": {"Software": None}, "pdf": {"CreationDate": None, "Producer": None}, "svg": {"Date": None}}
    content = io.BytesIO()
    with styled():
        drawn.savefig(content, format=kind, dpi=150, metadata=silent[kind])
    with atomic_write(path) as temporary:
        temporary.write_bytes(content.getvalue())
    return path
