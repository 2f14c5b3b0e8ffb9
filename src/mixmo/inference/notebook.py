"""Predictions as pictures in a notebook: each image with what the ensemble and each member predict."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from mixmo.inference.thumbnails import data_uri
from mixmo.utils.errors import UserError
from mixmo.utils.text import printable

if TYPE_CHECKING:
    from mixmo.inference.prediction import Prediction

MOST = 48  # images
TOP = 3  # classes of the ensemble
STYLE = """<style>
.mixmo-show { display: grid; grid-template-columns: repeat(auto-fill, minmax(190px, 1fr)); gap: 12px; max-width: 1200px;
  font: 13px/1.45 system-ui, sans-serif; }
.mixmo-show figure { margin: 0; padding: 10px; border: 1px solid #8885; border-radius: 8px; }
.mixmo-show img { width: 100%; aspect-ratio: 1; object-fit: contain; image-rendering: pixelated; border-radius: 4px;
  background: #8882; }
.mixmo-show .bar { position: relative; margin: 3px 0; padding: 1px 6px; display: flex; justify-content: space-between; }
.mixmo-show .bar i { position: absolute; inset: 0 auto 0 0; background: #0072b240; border-radius: 3px; }
.mixmo-show .bar span { position: relative; overflow-wrap: anywhere; }
.mixmo-show small { display: block; opacity: .8; }
</style>"""


@dataclass(frozen=True)
class Shown:
    """What a notebook shows; `html` is the same for other uses."""

    html: str

    def _repr_html_(self) -> str:
        return self.html


def show(
    prediction: "Prediction",
    images: Tensor | np.ndarray,
    classes: Sequence[str] | None = None,
    labels: Tensor | Sequence[int] | None = None,
) -> Shown:
    """Lay out images beside what was predicted for them; see `Prediction.show`."""
    pixels_NHWC = _pixels(images)
    _, count, number = prediction.logits.shape
    true = None if labels is None else torch.as_tensor(labels).tolist()
    if len(pixels_NHWC) != count:
        raise UserError(f"{len(pixels_NHWC)} images for predictions of {count}; give those that were predicted")
    if classes is not None and len(classes) != number:
        raise UserError(f"{len(classes)} class names for {number} classes; give one for each, or none")
    if true is not None and len(true) != count:
        raise UserError(f"{len(true)} labels for {count} images; give one for each, or none")
    names = [escape(printable(str(name))) for name in (range(number) if classes is None else classes)]
    figures = [
        _figure(prediction, n, pixels_NHWC[n], names, None if true is None else true[n])
        for n in range(min(MOST, count))
    ]
    more = f"<p>The first {MOST} of {count} images.</p>" if count > MOST else ""
    return Shown(f'{STYLE}<div class="mixmo-show">{"".join(figures)}</div>{more}')


def _figure(prediction: "Prediction", n: int, image_HWC: Tensor, names: Sequence[str], label: int | None) -> str:
    p_K, calibration = prediction.probs[n], prediction.calibration
    bars = "".join(
        f'<div class="bar"><i style="width:{100 * p_K[k]:.1f}%"></i><span>{names[k]}</span>'
        f"<span>{100 * p_K[k]:.1f} %</span></div>"
        for k in p_K.argsort(descending=True)[:TOP].tolist()
    )
    lines = [] if label is None else [f"true: {names[label]}"]
    if len(prediction.logits) > 1:
        best = [(m, int(p_MK.argmax()), float(p_MK.max())) for m, p_MK in enumerate(prediction.members[:, n])]
        lines += [f"member {m}: {names[k]}, {100 * p:.1f} %" for m, k, p in best]
        lines.append(f"mutual information {prediction.mutual_information[n]:.3f}")
    lines.append(f"entropy {prediction.entropy[n]:.3f}")
    if calibration is not None and calibration.conformal is not None:
        inside = [names[k] for k in prediction.sets[n].nonzero()[:, 0].tolist()]
        lines.append(f"conformal set: {', '.join(inside) or 'empty'}")
    if calibration is not None and calibration.selective is not None and bool(prediction.abstain[n]):
        lines.append("abstain")
    text = "".join(f"<small>{line}</small>" for line in lines)
    alt = f"image {n}, predicted as {names[int(p_K.argmax())]}"
    return f'<figure><img src="{data_uri(image_HWC)}" alt="{alt}">{bars}{text}</figure>'


def _pixels(images: Tensor | np.ndarray) -> Tensor:
    """uint8 images (N, H, W, C); floats, which may be normalised, stretched to the whole range."""
    pixels = torch.from_numpy(np.ascontiguousarray(images)) if isinstance(images, np.ndarray) else images
    if not isinstance(pixels, Tensor) or pixels.ndim != 4 or 0 in pixels.shape:
        raise UserError(
            f"images are a {type(images).__name__}; give the tensor or array (N, C, H, W) that was predicted"
        )
    if pixels.is_floating_point():
        low, high = (end(pixels.flatten(1), 1).view(-1, 1, 1, 1) for end in (torch.amin, torch.amax))
        pixels = (255 * (pixels - low) / (high - low).clamp_min(1e-9)).round().to(torch.uint8)
        return pixels.permute(0, 2, 3, 1)
    channels_last = pixels.shape[-1] <= 4 and pixels.shape[1] > 4
    return pixels if channels_last else pixels.permute(0, 2, 3, 1)
