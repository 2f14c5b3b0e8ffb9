"""Thumbnails of test images, where the data set is at hand."""

from collections.abc import Sequence
from pathlib import Path

import torch

from mixmo import data
from mixmo.data.types import Split
from mixmo.inference.thumbnails import data_uri
from mixmo.reports.run_data import RunData
from mixmo.utils.errors import UserError


def thumbnails(run: RunData, places: Sequence[int], root: Path | None) -> dict[int, str]:
    """Return the test images at these places as data URIs; none, with a note in `run`, where they cannot be had."""

    def read() -> dict[int, str]:
        recipe = run.recipe
        if recipe is None or run.logits is None:
            raise UserError("the recipe does not name the data set")
        test = data.load(recipe.dataset, root, stream=True, workers=0, val=recipe.val, train=False).test
        if not torch.equal(test.labels, run.logits.labels):
            raise UserError(f"{recipe.dataset} has other test images here than those that were predicted")
        order = torch.tensor(list(places))
        chosen = Split(test.images[order], test.labels[order])
        images = [image for batch in chosen.batches(len(places)) for image in batch.resident]
        if len(images) != len(places):
            raise UserError("some image files cannot be read any more")
        return {place: data_uri(image) for place, image in zip(places, images, strict=True)}

    return run.read("images", read) or {}
