"""Save a network as a folder, read it back, upload it to the Hugging Face Hub."""

import copy
import json
import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor, nn

from mixmo._version import __version__
from mixmo.calibration.posthoc import Calibration
from mixmo.hub.architecture import build, describe
from mixmo.hub.backbones import library
from mixmo.hub.card import Origin, card
from mixmo.hub.config import HUB_NAME, WEIGHTS, check_about, find, read_config
from mixmo.hub.shipped import CONFIG
from mixmo.models import Ensemble
from mixmo.models.metadata import About
from mixmo.storage import checksums
from mixmo.storage.files import staging_folder
from mixmo.storage.weights import load_state, load_weights, save_tensors, stored_shapes, to_bfloat16
from mixmo.surgery.eval_view import in_eval_mode
from mixmo.surgery.probe import input_size
from mixmo.surgery.unwrap import unwrap_ensemble
from mixmo.utils.device import on_cpu
from mixmo.utils.errors import UserError, check_path, check_readable, first_line

CARD = "README.md"


def save_pretrained(
    net: Ensemble,
    folder: Path | str,
    *,
    about: About | None = None,
    calibration: Calibration | None = None,
    name: str | None = None,
    origin: Origin | None = None,
    half: bool = False,
) -> Path:
    """Write a network to a new or empty folder: config.json, model.safetensors, README.md, SHA256SUMS.

    The folder is read back, and the network in it must predict as this one does. Only a wrapped backbone that is
    neither timm's nor torchvision's, or that was changed, must be given again to `mixmo.from_pretrained`.

    Args:
        net: A network of `mixmo.create` or `mixmo.wrap`.
        folder: A new or empty folder.
        about: How images are prepared, class names and scores; by default `net.about`.
        calibration: What `mixmo.calibrate` fitted; replaces that of `about`.
        name: Name on the Hub, for the model card.
        origin: How the network was trained, for the model card.
        half: Round matrices and filters to bfloat16: half the size, and slightly different predictions.

    Raises:
        UserError: If the folder is not empty, `about` does not fit the network, or the network was changed so that it
            cannot be built again.
    """
    folder, net = check_path("folder", folder), unwrap_ensemble(net)
    check_readable(folder)
    about = net.about if about is None else about
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} exists already and is not an empty folder; give a new one, or remove it")
    if not isinstance(about, About) and not (about is calibration is None):
        raise UserError(f"about is a {type(about).__name__}; give about=mixmo.About(...)")
    check_about(net, about)
    about = about.calibrated(calibration) if about and calibration else about
    architectures = describe(net)
    net = rounded(net) if half else net
    size = input_size(net) if about is None else about.size
    images = torch.rand(2, *size, generator=torch.Generator().manual_seed(0), device="cpu").to(next(net.parameters()))
    with torch.no_grad():
        logits = in_eval_mode(net).each(images)
    if not logits.isfinite().all():
        raise UserError("the network outputs NaN or infinite values; check whether its training diverged")
    with staging_folder(folder.absolute()) as temporary:
        draft = temporary / "draft"
        draft.mkdir()
        tensors = {name: tensor.clone() for name, tensor in net.state_dict().items()}  # safetensors rejects tied ones
        save_tensors(to_bfloat16(tensors) if half else tensors, draft / WEIGHTS)
        for architecture in architectures:
            config = {"mixmo": __version__, "architecture": architecture, "about": about and about.to_dict()}
            config |= {"origin": asdict(origin)} if origin else {}
            (draft / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
            given = "create" not in architecture and library(architecture) is None
            if given or _predicts(draft, images, logits):
                break
        else:
            raise UserError("a new network with these weights predicts otherwise; undo what was changed in its layers")
        (draft / checksums.NAME).write_text(checksums.format_sums({file: draft / file for file in (CONFIG, WEIGHTS)}))
        text = card(name or folder.absolute().name, architecture, about, origin)
        (draft / CARD).write_text(text, encoding="utf-8", errors="backslashreplace")  # names may come from file names
        if not folder.exists():
            shutil.move(draft, folder)
        else:  # filled, not replaced: it may be the current folder, a link or a mount point
            for file in sorted(draft.iterdir(), key=lambda file: file.name == CONFIG):  # last, what makes it a network
                shutil.move(file, folder / file.name)
    return folder


@on_cpu
@torch.inference_mode(False)  # what is loaded can be trained
def from_pretrained(
    where: Path | str, model: nn.Module | None = None, *, revision: str | None = None, token: str | None = None
) -> Ensemble:
    """Return the network in a folder that `save_pretrained` wrote, a shipped one, or one on the Hub.

    Weights of half precision are read as float32. No pickle is read, and no code from the Hub is run.

    Args:
        where: A folder, a name of `mixmo.shipped()`, or OWNER/NAME on the Hub.
        model: The bare backbone of a wrapped network that neither timm nor torchvision makes; its weights are replaced.
        revision: Branch, tag or commit on the Hub.
        token: Access token of the Hub.

    Returns:
        The network, on the CPU and in eval mode, with its metadata in `about`.
    """
    folder = find(where, revision, token)
    config = read_config(folder)
    try:
        net = build(config["architecture"], stored_shapes(folder / WEIGHTS), model)
        about = None if config["about"] is None else About.from_dict(config["about"])
        check_about(net, about)
    except UserError as error:
        raise UserError(f"{folder / CONFIG}: {error}") from error
    except (KeyError, TypeError, AttributeError, OverflowError, RuntimeError) as error:  # RuntimeError: PyTorch's
        raise UserError(
            f"{folder / CONFIG} does not describe a network ({first_line(error)}); save it again"
        ) from error
    checksums.verify(folder / CONFIG)
    load_weights(net, folder / WEIGHTS, assign=True)
    types = {tensor.dtype for tensor in net.state_dict().values() if tensor.is_floating_point()}
    if len(types) > 1 or types & {torch.bfloat16, torch.float16}:
        net.float()  # CPUs are slow in half precision, and layers of different precision do not compute together
    net.about = about
    return net.cpu().eval()  # what is in no file is where the given model was


def push_to_hub(
    net: Ensemble,
    name: str,
    *,
    about: About | None = None,
    calibration: Calibration | None = None,
    private: bool = False,
    token: str | None = None,
) -> str:
    """Save a network and upload it to the Hugging Face Hub.

    Args:
        net: A network of `mixmo.create` or `mixmo.wrap`.
        name: OWNER/NAME on the Hub, such as "me/cut-mixmo".
        about: As in `save_pretrained`, and so is `calibration`.
        private: Create a private repository.
        token: Access token; by default that of `hf auth login`.

    Returns:
        The address of the repository.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    if not HUB_NAME.fullmatch(str(name)):
        raise UserError(f"'{name}' is not a name on the Hub; give OWNER/NAME")
    with tempfile.TemporaryDirectory() as temporary:
        folder = save_pretrained(net, Path(temporary) / "model", about=about, calibration=calibration, name=name)
        api = HfApi(token=token)
        try:
            address = api.create_repo(name, private=private, exist_ok=True)
            api.upload_folder(repo_id=name, folder_path=folder, commit_message=f"mixmo {__version__}")
        except (HfHubHTTPError, HFValidationError, OSError) as error:
            raise UserError(f"{name} could not be uploaded ({first_line(error)}); see `hf auth login`") from error
    return str(address)


def rounded(net: Ensemble) -> Ensemble:
    """Return a copy with weights rounded to bfloat16, in the precision that they had."""
    copied = copy.deepcopy(net)
    load_state(copied, to_bfloat16(net.state_dict()))
    return copied


def _predicts(folder: Path, images: Tensor, logits: Tensor) -> bool:
    try:
        again = from_pretrained(folder).to(images)
    except UserError:
        return False
    with torch.no_grad():
        return torch.allclose(again.each(images), logits, rtol=1e-3, atol=1e-3 * float(logits.abs().max()) + 1e-6)
