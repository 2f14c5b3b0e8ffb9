"""Inference: one image repeated for all M members and their logits averaged, or M different images per pass."""

import warnings
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from mixmo.augment.basic import centre, normalise
from mixmo.calibration.posthoc import Calibration
from mixmo.data.types import Dataset, Split
from mixmo.inference.prediction import Prediction
from mixmo.inference.preparation import resize_and_crop
from mixmo.metrics.logits import LabelledLogits
from mixmo.models.network import Ensemble, Network
from mixmo.surgery.eval_view import in_eval_mode
from mixmo.surgery.unwrap import unwrap_ensemble
from mixmo.utils.device import autocast
from mixmo.utils.errors import UserError, check_whole, first_line
from mixmo.utils.eval_mode import evaluating
from mixmo.utils.memory import exhausted
from mixmo.utils.progress import Work
from mixmo.utils.tensors import check_filled


@torch.no_grad()
def predict(
    nets: Ensemble | Sequence[Ensemble],
    images: Tensor | np.ndarray,
    *,
    images_per_pass: int = 1,
    calibration: Calibration | None = None,
    batch_size: int | None = None,
) -> Prediction:
    """Predict the classes of images, in batches that fit into memory, with one network or an ensemble of several.

    With `images_per_pass` different images per forward pass of a network with M members (multiplexed inference), 1
    shows each image to all of them (the ensemble), M one image to each (M times the throughput). In between each image
    gets M / images_per_pass members, or one more where this is no whole number; fewer logits of another image are then
    followed by their mean. A prediction then depends a little on the other images of its pass.

    Several threads may predict with one network, also while another trains it: a network in training mode predicts by
    a copy that shares its weights, which takes some milliseconds more. Only its mode must not change meanwhile.

    Args:
        nets: A network of `mixmo.create`, `mixmo.wrap` or `mixmo.load`; or several, whose members form one ensemble. It
            predicts in eval mode and is left as it was.
        images: Float (N, C, H, W), normalised as in training. Or uint8 (N, H, W, C) or (N, C, H, W) if `net.about` is
            set: they are normalised, and first resized and centre-cropped if their size is not that of `net.about`.
        images_per_pass: Different images per forward pass, 1 to M.
        calibration: What `mixmo.calibrate` fitted; by default that of `net.about`, for one network and one image per
            pass.
        batch_size: Images per batch; chosen by the size of the images if None.

    Returns:
        The prediction, on the device of the images.

    Raises:
        UserError: If images have another shape or type than the network takes, or networks have other classes.

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
    pixels = _checked(images, nets)
    check_whole("batch_size", 1 if batch_size is None else batch_size)
    if not isinstance(calibration, Calibration | None):
        raise UserError(f"calibration is a {type(calibration).__name__}; give what mixmo.calibrate fitted")
    check_whole("images_per_pass", images_per_pass)
    for net in nets:
        check_multiplex(net, images_per_pass)
    if calibration is None and len(nets) == 1 and images_per_pass == 1 and nets[0].about is not None:
        calibration = nets[0].about.calibration
    used = [in_eval_mode(net, images_per_pass) for net in nets]
    parts = [_logits(net, pixels, images_per_pass, batch_size) for net in used]
    classes = sorted({logits.shape[-1] for logits in parts})
    if len(classes) > 1:
        raise UserError(f"the networks have {classes} classes; those of one ensemble must have the same")
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
    """Return the logits of every head for a split, cropped to `size`, and its labels; `part` as in `Split.batches`."""
    device = split.images.device
    batch_size = batch_size or default_batch(device)
    work = Work("predicting test images" if split is dataset.test else "predicting images", len(split.labels))
    with evaluating(net), autocast(device, precision), work:
        logits = []
        for batch in split.batches(batch_size, part):
            images = normalise(centre(batch.resident, size), dataset.mean, dataset.std)
            logits.append(LabelledLogits(net.each(images).float(), batch.labels))
            work.advance(len(batch.labels))
    return LabelledLogits.joined(logits)


def each_head(net: Ensemble, images_NCHW: Tensor, images_per_pass: int) -> Tensor:
    """Return the logits of every head that reads an image (heads of an image, N, K).

    With several images per pass, member m reads image m mod images_per_pass of its pass, and the encodings are summed:
    what training showed, M sum_i kappa_i c_i(x_i), at kappa = 1/M.
    """
    if images_per_pass == 1:
        return net.each(images_NCHW)
    samples, passes = len(images_NCHW), -(-len(images_NCHW) // images_per_pass)
    # The last pass may lack images: the first ones fill it, and their second logits are dropped.
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
    """Raise a UserError if the network cannot predict so many different images per pass."""
    shared = net.num_heads != net.members or (isinstance(net, Network) and len(net.encoders) < net.members)
    if images_per_pass not in range(1, 2 if shared else net.members + 1):
        most = "1 (it is folded, or its members share one encoder or head)" if shared else net.members
        raise UserError(f"images_per_pass = {images_per_pass}, but this network reads 1 to {most}")


def default_batch(device: torch.device, pixels: int = 0) -> int:
    """Return the images per batch: what fits a CPU's caches is 1.7 times as fast; large images need more memory each.

    >>> [default_batch(torch.device("cpu"), side**2) for side in (32, 64, 224, 4000)]
    [100, 100, 8, 1]
    >>> [default_batch(torch.device("cuda"), side**2) for side in (32, 128, 224, 4000)]
    [500, 500, 163, 1]
    """
    most, side = (100, 64) if device.type == "cpu" else (500, 128)
    return max(1, min(most, most * side**2 // max(pixels, 1)))


def _logits(net: Ensemble, pixels: Tensor, images_per_pass: int, batch_size: int | None) -> Tensor:
    parameter = next(net.parameters())
    count = batch_size or default_batch(parameter.device, pixels.shape[-2] * pixels.shape[-1])
    count = -(-min(count, len(pixels)) // images_per_pass) * images_per_pass  # whole passes
    parts = []
    for part in pixels.split(count):
        batch = part.to(parameter.device)
        if net.about is not None and batch.dtype == torch.uint8:
            batch = normalise(resize_and_crop(batch, net.about), net.about.mean, net.about.std)
        try:
            parts.append(each_head(net, batch.to(parameter.dtype), images_per_pass).float().to(pixels.device))
        except UserError:
            raise
        except (MemoryError, RuntimeError, ValueError, AssertionError) as error:
            raise _cannot_read(batch, error) from error
    return torch.cat(parts, dim=1)


def _cannot_read(images_NCHW: Tensor, error: Exception) -> UserError:
    what = f"{len(images_NCHW)} images of {' x '.join(map(str, images_NCHW.shape[1:]))}"
    if exhausted(error):
        return UserError(f"the network cannot read {what} (not enough memory); give a smaller batch_size")
    return UserError(f"the network cannot read {what} ({first_line(error)}); give them (N, C, H, W), as in training")


def _checked(images: Tensor | np.ndarray, nets: Sequence[Ensemble]) -> Tensor:
    """Return float images (N, C, H, W) or uint8 images (N, H, W, C)."""
    try:
        pixels = torch.from_numpy(np.ascontiguousarray(images)) if isinstance(images, np.ndarray) else images
    except (TypeError, ValueError) as error:
        raise UserError(
            f"images are an array of {images.dtype} ({first_line(error)}); give float32 or uint8"
        ) from error
    if isinstance(pixels, Tensor):
        check_filled("images", pixels)
    if not isinstance(pixels, Tensor) or pixels.ndim != 4 or 0 in pixels.shape:
        given = f"a {type(images).__name__} of shape {tuple(getattr(images, 'shape', ()))}"
        raise UserError(f"images are {given}; give a tensor or an array (N, C, H, W) (images[None] for a single one)")
    abouts = [net.about for net in nets if net.about is not None]
    if pixels.is_floating_point():
        side, sizes = tuple(pixels.shape[2:]), {about.size[1:] for about in abouts}
        if sizes - {side}:  # most networks compute something for any size, but less accurately
            message = f"images have {side} pixels, and the network was trained on {sizes.pop()} (net.about.size)"
            warnings.warn(f"{message}; resize them, or give uint8 images, which are resized", stacklevel=4)
        return pixels
    channels = abouts[0].size[0] if len(abouts) == len(nets) else None
    if pixels.dtype != torch.uint8 or channels not in (pixels.shape[1], pixels.shape[-1]):
        given = f"{pixels.dtype} of shape {tuple(pixels.shape)}"
        known = "with the channels of net.about.size" if channels else "after setting net.about = mixmo.About(...)"
        raise UserError(f"images are {given}; give normalised floats (N, C, H, W), or uint8 {known}")
    return pixels if pixels.shape[-1] == channels else pixels.permute(0, 2, 3, 1)
