"""At test time: the same image M times and the heads averaged, or M different images, in one forward pass."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from mixmo.augment.basic import centre, normalise
from mixmo.calibration.posthoc import Calibration
from mixmo.data.types import Dataset, Split
from mixmo.inference.prediction import Prediction
from mixmo.metrics.logits import LabelledLogits
from mixmo.models.metadata import About
from mixmo.models.network import Ensemble, Network
from mixmo.surgery.unwrap import unwrap_ensemble
from mixmo.utils.errors import UserError, check_whole, first_line
from mixmo.utils.eval_mode import evaluating
from mixmo.utils.memory import exhausted
from mixmo.utils.progress import Work


@torch.no_grad()
def predict(
    nets: Ensemble | Sequence[Ensemble],
    images: Tensor | np.ndarray,
    *,
    images_per_pass: int = 1,
    calibration: Calibration | None = None,
    batch_size: int | None = None,
) -> Prediction:
    """What a network says of images, in batches that fit; several networks are one ensemble of N x M members.

    Images are float (N, C, H, W), normalised as in training, on any device; or uint8 (N, H, W, C) or (N, C, H, W) for
    a network that knows its normalisation (`net.about`). The prediction is where the images are. A network is used in
    eval mode and left as it was. `calibration` is by default that saved with the network, if it is one.

    `images_per_pass` different images share each pass of a network of M members: 1 gives one image to all of them (the
    ensemble), M one to each (M times the throughput), and in between each image gets M / images_per_pass members, or
    one more where this is no whole number; the fewer heads of another image are then followed by their mean, which
    leaves the ensemble as it is. An image's answer depends a little on those beside it.

    >>> import mixmo
    >>> net = mixmo.create("wrn10_1", classes=10, members=2)
    >>> predict(net, torch.randn(4, 3, 32, 32)).probs.shape
    torch.Size([4, 10])
    >>> predict(net, torch.randn(4, 3, 32, 32), images_per_pass=2).logits.shape
    torch.Size([1, 4, 10])
    """
    nets = [unwrap_ensemble(net) for net in (nets if isinstance(nets, Sequence | nn.ModuleList) else [nets])]
    if not nets:
        raise UserError("no network was given; give one, or several as one ensemble")
    if batch_size is not None:
        check_whole("batch_size", batch_size)
    if not isinstance(calibration, Calibration | None):
        raise UserError(f"calibration is a {type(calibration).__name__}; give what mixmo.calibrate fitted")
    pixels = _images(images, [net.about for net in nets])
    for net in nets:
        check_multiplex(net, images_per_pass)
    if calibration is None and len(nets) == 1 and images_per_pass == 1 and nets[0].about is not None:
        calibration = nets[0].about.calibration
    with evaluating(*nets):
        parts = [_logits(net, pixels, images_per_pass, batch_size) for net in nets]
    classes = sorted({logits.shape[-1] for logits in parts})
    if len(classes) > 1:
        raise UserError(f"the networks know {classes} classes; those of one ensemble must know the same")
    return Prediction(torch.cat(parts), calibration)


@torch.no_grad()
def predict_split(
    net: Ensemble,
    dataset: Dataset,
    split: Split,
    precision: str = "fp32",
    batch_size: int | None = None,
    size: int | None = None,
    part: bool = False,
) -> LabelledLogits:
    """Every head's logits for a whole split, with its labels; of the middle `size` x `size` pixels if given.

    `part` is that of `Split.batches`: then there may be no answers at all.
    """
    device = split.images.device
    batch_size = batch_size or default_batch(device)
    work = Work("predicting test images" if split is dataset.test else "predicting images", len(split.labels))
    with evaluating(net), torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"), work:
        answers = []
        for batch in split.batches(batch_size, part):
            images = normalise(centre(batch.resident, size), dataset.mean, dataset.std)
            answers.append(LabelledLogits(net.each(images).float(), batch.labels))
            work.advance(len(batch.labels))
    return LabelledLogits.joined(answers)


def each_head(net: Ensemble, images_NCHW: Tensor, images_per_pass: int) -> Tensor:
    """Every head's logits of each image (heads of an image, N, K).

    With several images a pass, member m reads image m mod images_per_pass of its pass, and the encodings are plainly
    summed, as at test time: this is what training showed it, M sum_i kappa_i c_i(x_i), at kappa = 1/M.
    """
    if images_per_pass == 1:
        return net.each(images_NCHW)
    samples, passes = len(images_NCHW), -(-len(images_NCHW) // images_per_pass)
    # The last pass may lack images: the first ones are shown again, and their second answers dropped.
    order = torch.arange(passes * images_per_pass, device=images_NCHW.device) % samples
    shown = images_NCHW[order].unflatten(0, (images_per_pass, passes))
    reader = torch.arange(net.members, device=images_NCHW.device) % images_per_pass
    read_MNK = net.read(shown[reader])
    most = -(-net.members // images_per_pass)
    each = []
    for image in range(images_per_pass):
        own_MNK = read_MNK[reader == image]
        mean = [own_MNK.mean(0, keepdim=True)] * (most - len(own_MNK))
        each.append(torch.cat([own_MNK, *mean]))
    return torch.cat(each, dim=1)[:, :samples]


def check_multiplex(net: Ensemble, images_per_pass: int) -> None:
    """Refuse a network that cannot answer for so many different images in a pass."""
    if type(images_per_pass) is not int:
        raise UserError(f"images_per_pass = {images_per_pass!r}; give a whole number of images")
    if images_per_pass > 1 and net.members == 1 and net.answers > 1:
        raise UserError(
            "a folded network has one encoder and reads one image a pass; to read several at once, "
            "use the network before mixmo.fold"
        )
    if images_per_pass not in range(1, net.members + 1):
        raise UserError(f"images_per_pass = {images_per_pass}, but this network reads 1 to {net.members} images a pass")
    shared = isinstance(net, Network) and len(net.encoders) < net.members
    if images_per_pass > 1 and (shared or net.answers < net.members):
        what = "encoder" if shared else "head"
        raise UserError(
            f"the {net.members} members of this network share one {what}, so it cannot tell its images apart; "
            "predict with images_per_pass=1"
        )


def default_batch(device: torch.device, pixels: int = 0) -> int:
    """Images a batch: what fits a CPU's caches is 1.7 times as fast; large images need more memory each.

    >>> [default_batch(torch.device("cpu"), side**2) for side in (32, 64, 224, 4000)]
    [100, 100, 8, 1]
    >>> [default_batch(torch.device("cuda"), side**2) for side in (32, 128, 224, 4000)]
    [500, 500, 163, 1]
    """
    if device.type == "cpu":
        return max(1, min(100, 100 * 64**2 // max(pixels, 1)))
    return max(1, min(500, 500 * 128**2 // max(pixels, 1)))


def _logits(net: Ensemble, pixels: Tensor, images_per_pass: int, batch_size: int | None) -> Tensor:
    parameter = next(net.parameters())
    count = batch_size or default_batch(parameter.device, pixels.shape[-2] * pixels.shape[-1])
    count = -(-count // images_per_pass) * images_per_pass  # whole passes
    parts = []
    for part in pixels.split(count):
        batch = part.to(parameter.device)
        if net.about is not None and batch.dtype == torch.uint8:
            batch = normalise(batch, net.about.mean, net.about.std)
        with readable(batch):
            parts.append(each_head(net, batch.to(parameter.dtype), images_per_pass).float().to(pixels.device))
    return torch.cat(parts, dim=1)


@contextmanager
def readable(images_NCHW: Tensor) -> Iterator[None]:
    """What a network says of images of a shape that it does not take, or of too many of them, as one sentence."""
    try:
        yield
    except UserError:
        raise
    except (MemoryError, RuntimeError, ValueError, AssertionError) as error:
        count, channels, height, width = images_NCHW.shape
        if exhausted(error):
            raise UserError(
                f"there is not enough memory to read {count} images of {height} x {width} pixels at once; "
                "give a smaller batch_size, or smaller images"
            ) from error
        raise UserError(
            f"the network cannot read images of {channels} channels and {height} x {width} pixels "
            f"({first_line(error)}); give them (N, C, H, W), as in training"
        ) from error


def _images(images: Tensor | np.ndarray, abouts: Sequence[About | None]) -> Tensor:
    """Float (N, C, H, W), or uint8 (N, H, W, C) that every network can normalise."""
    if isinstance(images, np.ndarray) and images.dtype.kind in "biuf":
        images = torch.from_numpy(np.ascontiguousarray(images))
    if not isinstance(images, Tensor):
        raise UserError(
            f"images are of type {type(images).__name__}; give a tensor or array (N, C, H, W), a batch at a time"
        )
    if images.is_meta:
        raise UserError("images are on the meta device, where nothing is stored; give them on a CPU or a GPU")
    if images.ndim != 4 or 0 in images.shape:
        hint = "; add the first dimension with images[None]" if images.ndim == 3 else ""
        raise UserError(f"images have shape {tuple(images.shape)}; give (N, C, H, W), none of them 0{hint}")
    if images.is_floating_point():
        if not images.isfinite().all():
            raise UserError("images hold NaN or infinite values; see how they were read and normalised")
        return images
    known = [about for about in abouts if about is not None]
    if images.dtype != torch.uint8 or len(known) < len(abouts):
        raise UserError(
            f"images are of type {images.dtype}; give floats normalised as in training, or uint8 to a network that "
            "knows its normalisation (net.about, as after mixmo.load)"
        )
    channels = known[0].size[0]
    if images.shape[-1] == channels:
        return images
    if images.shape[1] == channels:
        return images.permute(0, 2, 3, 1)
    raise UserError(
        f"images have shape {tuple(images.shape)}, but this network reads {channels} channels; give (N, H, W, C) or "
        "(N, C, H, W) with as many"
    )
