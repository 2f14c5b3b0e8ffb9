"""A training batch of a recipe after each stage: pixels, mixed input, targets."""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from mixmo.data.types import Dataset
from mixmo.engine.batch import Batches, Now
from mixmo.engine.preflight import check_fit, check_mask
from mixmo.mixing.types import Mix
from mixmo.plots.style import COLOURS, FAINT, INK, figure, row_title, show_image, styled, tinted
from mixmo.recipes import Recipe

SHOWN = 6


class Sheet(NamedTuple):
    stages: dict[str, Tensor]  # name -> the members' images (M, N, H, W, C), in [0, 1]
    shares: Tensor | None  # (M, N, H, W) of each member in what the network reads; None if nothing is mixed
    captions: list[list[str]]  # [head][sample]: target and loss weight


def prepare(recipe: Recipe, dataset: Dataset, shown: int = SHOWN, seed: int = 0) -> Sheet:
    """The first samples of a batch as training would draw it, with a mask wherever the recipe has one.

    The stages are the same draws, used with a part of the recipe turned off.
    """
    check_fit(recipe, dataset)
    generator = Generator().manual_seed(seed)
    net = recipe.network(len(dataset.classes), recipe.seen(dataset.size))
    check_mask(recipe, net, dataset.size)
    batches = Batches(recipe, dataset, dataset.train, net=net)
    unique = torch.randperm(len(dataset.train.labels), generator=generator)[: recipe.batch_size // recipe.repetition]
    draws = batches.draw(unique, generator)
    now = Now.at(float(recipe.p > 0))
    mix = batches.mix(draws, now)
    plain = draws._replace(augmix=None, pixel=None, feature_mixing=None)
    untouched = Batches(recipe.replace(crop=0, crop_scale=1.0, flip=False), dataset, dataset.train, net=net)
    middle = plain._replace(crop=torch.full_like(plain.crop, 0.5))
    stages = {"raw": untouched.mix(middle, now)}
    cropped = recipe.crop > 0 or recipe.crop_scale < 1 or recipe.size is not None
    if cropped or recipe.flip:
        words = [word for word, used in (("cropped", cropped), ("flipped", recipe.flip)) if used]
        stages[", ".join(words)] = batches.mix(plain, now)
    if recipe.augmix:
        stages["AugMix"] = batches.mix(plain._replace(augmix=draws.augmix), now)
    if recipe.pixel != "none":
        stages[recipe.pixel] = mix
    merged = recipe.members > 1 and recipe.mask != "concat"
    pixels = {name: _pixels(stage, dataset)[:, :shown] for name, stage in stages.items()}
    samples = range(min(shown, recipe.batch_size))
    captions = [[caption(mix, dataset, head, n) for n in samples] for head in range(len(mix.weights))]
    return Sheet(pixels, _shares(mix)[:, :shown] if merged else None, captions)


def _pixels(mix: Mix, dataset: Dataset) -> Tensor:
    """The members' images with the normalisation undone."""
    images = mix.images.permute(0, 1, 3, 4, 2)
    return (images * torch.tensor(dataset.std) + torch.tensor(dataset.mean)).clamp(0, 1)


def _shares(mix: Mix) -> Tensor:
    """The mixing coefficients at the size of the images."""
    members, n, _, height, width = mix.images.shape
    resized = F.interpolate(mix.coefficients.flatten(0, 1), size=(height, width), mode="nearest")
    return resized.view(members, n, height, width)


def caption(mix: Mix, dataset: Dataset, head: int, n: int) -> str:
    """The classes of a target, with their shares where there are several, and the weight of the loss."""
    target = mix.targets[head, n]
    if target.dim() == 0:
        target = F.one_hot(target.long(), len(dataset.classes)).float()
    order = target.argsort(descending=True)
    parts = [(target[k].item(), dataset.classes[k].replace("_", " ")) for k in order.tolist() if target[k] > 0.005]
    words = [f"{share:.2f} {name}" if len(parts) > 1 else name for share, name in parts]
    return "\n".join([*words, f"weight {mix.weights[head, n]:.2f}"])


class Row(NamedTuple):
    title: str
    images: Tensor  # (N, H, W, 3)
    colour: str | None = None  # of the frame: the member's
    labels: list[str] | None = None  # under the images


def rows(sheet: Sheet) -> list[Row]:
    """Return one row per stage and member, then the mixing coefficients and the mixed input."""
    members = len(next(iter(sheet.stages.values())))
    if members == 1:
        return [Row(name, images[0].expand(-1, -1, -1, 3)) for name, images in sheet.stages.items()]
    colours = [COLOURS[m % len(COLOURS)] for m in range(members)]
    shown = {name: [tinted(images[m], colours[m]) for m in range(members)] for name, images in sheet.stages.items()}
    lines = [Row(f"{name} $x_{m}$", images[m], colours[m]) for name, images in shown.items() for m in range(members)]
    if sheet.shares is not None:
        flat = [tinted(share[..., None], colour) for share, colour in zip(sheet.shares, colours, strict=True)]
        kappas = sheet.shares.mean((2, 3)).T.tolist()
        labels = ["  ".join(f"{kappa:.2f}" for kappa in sample) for sample in kappas]
        lines.append(Row("shares", torch.stack(flat).sum(0).clamp(max=1), None, labels))
        final = torch.stack(list(shown.values())[-1])
        lines.append(Row("mixed", (sheet.shares[..., None] * final).sum(0).clamp(max=1)))
    return lines


def note(recipe: Recipe) -> str:
    """Say what the figure cannot show."""
    if recipe.feature_mixing != "none":
        return f"mixed with each other inside the network: {recipe.feature_mixing}"
    if recipe.saliency != "none":
        return f"before {recipe.saliency}, which mixes images and targets by what the network in training looks at"
    if recipe.members > 1 and recipe.mask == "concat":
        return "the encodings are concatenated along their channels"
    if recipe.members > 1 and 0 < recipe.p < 1:
        return f"this batch has a mask: a batch has one with probability {recipe.p:g}, and linear mixing otherwise"
    return ""


def draw(recipe: Recipe, dataset: Dataset, seed: int = 0) -> Any:
    """Draw one column per sample, from its images down to the target of each head."""
    sheet = prepare(recipe, dataset, seed=seed)
    images = rows(sheet)
    count = len(images[0].images)
    texts = [0.16 * max(text.count("\n") + 1 for text in head) + 0.06 for head in sheet.captions]
    heights = [1.15 if row.labels else 1.0 for row in images] + texts
    with styled():
        drawn = figure(1.06 * count + 1.35, 1.08 * sum(heights) + 0.2)
        grid = drawn.subplots(len(heights), count, squeeze=False, height_ratios=heights)
        for line, row in zip(grid, images, strict=False):
            row_title(line[0], row.title)
            for n, axes in enumerate(line):
                show_image(axes, row.images[n], row.colour)
                if row.labels:
                    axes.set_xlabel(row.labels[n], labelpad=2, fontsize=7)
        for head, (line, captions) in enumerate(zip(grid[len(images) :], sheet.captions, strict=True)):
            row_title(line[0], f"target of head {head}" if len(sheet.captions) > 1 else "target")
            for axes, text in zip(line, captions, strict=True):
                axes.set(xticks=[], yticks=[])
                axes.grid(False)
                axes.spines[:].set_visible(False)
                axes.text(0.5, 0.5, text, ha="center", va="center", fontsize=7, color=INK, transform=axes.transAxes)
        drawn.supxlabel(note(recipe), fontsize=8, color=FAINT)
    return drawn
