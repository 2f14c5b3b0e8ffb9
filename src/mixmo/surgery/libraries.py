"""Classifiers of timm and torchvision by name, for given classes and image sizes, and their published weights."""

import importlib
import re
import socket
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from torch import Tensor, nn

from mixmo.utils.errors import UserError, first_line, quoted, unknown
from mixmo.utils.progress import Work

LIBRARIES = ("timm", "torchvision")
SIDE = 224  # of the images of torchvision's transformers, by default
DROP_PATH = {"timm": "drop_path_rate", "torchvision": "stochastic_depth_prob"}
LEFT_OUT = {"img_size", "image_size", *DROP_PATH.values()}  # options that are left out where a model has none
REJECTED = re.compile(r"(?:unexpected|multiple values for) keyword argument '(\w+)'")
DENSENET = re.compile(r"(denselayer\d+\.(?:norm|conv))\.([12]\.)")
ERRORS = (TypeError, ValueError, RuntimeError, AssertionError)  # of models that do not take an option


def make_model(library: str, name: str, options: dict[str, Any]) -> nn.Module:
    """Return a classifier with new weights; nothing is downloaded and no file is read."""
    _check_name(library, name)
    try:
        return _create(library, name, options)
    except ERRORS as error:
        raise _rejected(library, name, options, error) from error


def make_fitting(
    library: str, name: str, classes: int, size: tuple[int, int, int], drop_path: float
) -> tuple[nn.Module, dict[str, Any]]:
    """Return a classifier for K classes, images (C, H, W) and a drop path rate, and the options that made it."""
    _check_name(library, name)
    options = {"num_classes": classes, DROP_PATH[library]: drop_path} | _size_options(library, name, size)
    while True:
        try:
            model = _create(library, name, options)
            break
        except ERRORS as error:
            rejected = REJECTED.search(str(error))
            if rejected is None or rejected[1] not in LEFT_OUT & options.keys():
                raise _rejected(library, name, options, error) from error
            del options[rejected[1]]
    if drop_path and not any(type(layer).__name__ in ("DropPath", "StochasticDepth") for layer in model.modules()):
        raise UserError(f"it has no drop path; leave drop_path = {drop_path} out")  # some take the option and ignore it
    return model, options


def published_weights(library: str, name: str, options: dict[str, Any]) -> dict[str, Tensor]:
    """Return the weights that the library publishes for a model of `make_fitting`; they may have other classes."""
    where = _address(library, name)
    if where is None:
        raise UserError(f"{library} publishes no weights for it; give --weights FILE, or --no-pretrained")
    module = _imported(library)
    try:
        with Work(f"weights of {library}/{name}"), _without_retries():
            if library == "timm":  # which adapts the first convolution, the positions and the head
                model = module.create_model(name, pretrained=True, **options)
            else:
                model = module.models.get_model(name, weights="DEFAULT", progress=False)
    except Exception as error:  # of the connection, the Hub or its client: many kinds, one remedy
        problem = f"its weights cannot be downloaded ({first_line(error)})"
        raise UserError(
            f"{problem}; download {where} elsewhere and give --weights FILE, or --no-pretrained for random weights"
        ) from error
    return model.state_dict()  # type: ignore[no-any-return]


@contextmanager
def _without_retries() -> Iterator[None]:
    """Let the Hub's client look into its cache alone where its host is unknown; it would try again for a minute."""
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    if not getproxies():
        try:
            socket.getaddrinfo(urlsplit(constants.ENDPOINT).hostname, 443)
        except OSError:
            constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def normalisation(name: str, model: nn.Module) -> tuple[Sequence[float], Sequence[float]] | None:
    """Return mean and standard deviation per channel that a model (LIBRARY/NAME) was trained with, where known."""
    library, _, short = name.partition("/")
    if hasattr(model, "transform_input"):  # Inception and GoogLeNet: these weights are for pixels in [-1, 1]
        return (0.5,) * 3, (0.5,) * 3
    if library == "torchvision":
        presets = _imported(library).models.get_model_weights(short).DEFAULT.transforms()
        return presets.mean, presets.std
    cfg = getattr(model, "pretrained_cfg", None) or getattr(model, "default_cfg", None)
    if not isinstance(cfg, dict) or not {"mean", "std"} <= cfg.keys():
        return None
    return cfg["mean"], cfg["std"]


def renamed(model: nn.Module, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return weights by the names that the libraries give them when they read their own files.

    timm also changes shapes: positions are resampled. torchvision's DenseNets have other names in their files.
    """
    state = {DENSENET.sub(r"\1\2", name): tensor for name, tensor in state.items()}
    convert = getattr(sys.modules[type(model).__module__], "checkpoint_filter_fn", None)
    if convert is None or not type(model).__module__.startswith("timm."):
        return state
    try:
        return convert(dict(state), model)  # type: ignore[no-any-return]
    except Exception:  # of another model: what does not fit is named later
        return state


def _imported(library: str) -> Any:
    try:
        return importlib.import_module(library)
    except (ImportError, RuntimeError) as error:  # the latter if torch and torchvision do not fit
        raise UserError(f"{library} cannot be imported ({first_line(error)}); pip install {library}") from error


def _check_name(library: str, name: str) -> None:
    """Raise an error for a name that is not in the library's list: some names of timm download or read files."""
    module = _imported(library)
    if library == "torchvision":
        names = module.models.list_models(module=module.models)
        if name not in names:
            raise unknown("torchvision model", name, names)
        return
    plain, _, tag = name.partition(".")
    if not module.is_model(plain):
        raise unknown("timm model", plain, module.list_models())
    tags = [full.partition(".")[2] for full in module.list_models(f"{plain}.*", pretrained=True)]
    if "." in name and tag not in tags:
        raise unknown(f"weights of timm's {plain}", tag, tags)


def _create(library: str, name: str, options: dict[str, Any]) -> nn.Module:
    module = _imported(library)
    with warnings.catch_warnings(action="ignore"):  # about initial weights, which are replaced
        if library == "timm":
            return module.create_model(name, pretrained=False, **options)  # type: ignore[no-any-return]
        return module.models.get_model(name, weights=None, **options)  # type: ignore[no-any-return]


def _rejected(library: str, name: str, options: dict[str, Any], error: Exception) -> UserError:
    given = ", ".join(f"{option} = {quoted(value)}" for option, value in options.items())
    return UserError(f"{library}'s '{name}' does not take {given} ({first_line(error)})")


def _size_options(library: str, name: str, size: tuple[int, int, int]) -> dict[str, Any]:
    """Return the options of a model's channels and image size, where they are not its own."""
    channels, height, width = size
    if library == "torchvision":
        if channels != 3:
            raise UserError(f"torchvision's models read 3 channels and the images have {channels}; use a model of timm")
        return {"image_size": height} if height == width != SIDE else {}
    cfg = _imported("timm").get_pretrained_cfg(name)
    sides = {} if cfg is not None and cfg.input_size[1:] == (height, width) else {"img_size": (height, width)}
    return sides | ({"in_chans": channels} if channels != 3 else {})


def _address(library: str, name: str) -> str | None:
    """Return the address of the published weights."""
    if library == "torchvision":
        published = _imported("torchvision").models.get_model_weights(name)
        return published.DEFAULT.url if len(published) else None
    cfg = _imported("timm").get_pretrained_cfg(name)
    if cfg is None or not cfg.has_weights:
        return None
    file = cfg.hf_hub_filename or "model.safetensors"
    return f"https://huggingface.co/{cfg.hf_hub_id}/resolve/main/{file}" if cfg.hf_hub_id else cfg.url
