"""Save a network as a folder, read it back, send it to the Hugging Face Hub."""

import copy
import json
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mixmo._version import __version__
from mixmo.calibration.posthoc import Calibration
from mixmo.hub.architecture import build, classes, describe
from mixmo.hub.backbones import library
from mixmo.hub.card import card
from mixmo.hub.origin import Origin
from mixmo.hub.shipped import CONFIG, near, shipped, shipped_folder
from mixmo.models import Ensemble, Network
from mixmo.models.metadata import About
from mixmo.models.network import channels
from mixmo.storage import checksums
from mixmo.storage.files import drafts, halve, save_tensors
from mixmo.storage.weights import fill, put
from mixmo.surgery.probe import input_size
from mixmo.surgery.unwrap import unwrap_ensemble
from mixmo.surgery.wrap import Wrapped
from mixmo.utils.device import on_cpu
from mixmo.utils.errors import UserError, check_path, first_line
from mixmo.utils.eval_mode import evaluating

WEIGHTS, CARD = "model.safetensors", "README.md"
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".npy")
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
LARGEST = 2**14  # pixels a side of an image: one of this size takes 3 GB
HALVES = {torch.bfloat16, torch.float16}


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
    """Write a network to a new or empty folder: config.json, model.safetensors, README.md, SHA256SUMS. Gives it back.

    `about` (by default `net.about`) says how its images are prepared and how good it is; `calibration` replaces the one
    in it. `name` is its name on the Hub, for the model card, which tells the `origin` of the network too. `half` rounds
    matrices and filters to bfloat16: half the size, and a slightly different network. The folder is read back, and the
    network in it must answer as this one does, after rounding if asked for; only a wrapped backbone that is neither
    timm's nor torchvision's, or has layers of its own options, needs to be given again to be read.
    """
    folder, net = check_path("folder", folder), unwrap_ensemble(net)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} exists already and is not an empty folder; give a new one, or remove it")
    about = net.about if about is None else about
    if not isinstance(about, About | None):
        raise UserError(f"about is a {type(about).__name__}; give a mixmo.About(...)")
    if calibration is not None:
        if about is None:
            raise UserError("a calibration is saved with what the network is about; give about=mixmo.About(...)")
        about = about.calibrated(calibration)
    check_about(net, about)
    architectures = describe(net)
    net = rounded(net) if half else net
    images, answers = sample(net, about)
    if not answers.isfinite().all():
        raise UserError("the network answers NaN or infinite values; see whether its training diverged")
    with drafts(folder.absolute()) as temporary:
        draft = temporary / "draft"
        draft.mkdir()
        tensors = net.state_dict()
        save_tensors(apart(halve(tensors) if half else tensors), draft / WEIGHTS)
        for architecture in architectures:
            config = {"mixmo": __version__, "architecture": architecture, "about": about and about.to_dict()}
            config |= {"origin": origin.to_dict()} if origin else {}
            (draft / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
            given = "create" not in architecture and library(architecture) is None
            if given or same(draft, images, answers):
                break
        else:
            raise UserError(
                "the network answers otherwise than a fresh one with its weights; undo what changed its parts"
            )
        (draft / checksums.NAME).write_text(checksums.sums({file: draft / file for file in (CONFIG, WEIGHTS)}))
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
    """The network in a folder that `save_pretrained` wrote, or by its name a shipped one or one on the Hub.

    It is on the CPU and in eval mode; weights of half precision are read as float32. What it is about is its attribute
    `about`. `model` is the bare backbone of a wrapped network that no library makes; its own weights are replaced. No
    pickle is read, and no code from the Hub is run.
    """
    folder = find(where, revision, token)
    config = read_config(folder)
    try:
        net = build(config["architecture"], model)
        about = None if config["about"] is None else About.from_dict(config["about"])
        check_about(net, about)
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{folder / CONFIG} does not describe a network ({error}); save it again") from error
    except UserError as error:
        raise UserError(f"{folder / CONFIG}: {error}") from error
    checksums.check(folder / CONFIG)
    fill(net, folder / WEIGHTS, assign=True)
    types = {tensor.dtype for tensor in net.state_dict().values() if tensor.is_floating_point()}
    if len(types) > 1 or types & HALVES:
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
    """Save a network and upload it to the Hub as `name`, such as "me/cut-mixmo". Gives its address."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    if not HUB_NAME.fullmatch(str(name)):
        raise UserError(f"'{name}' is no name on the Hub; write OWNER/NAME")
    with tempfile.TemporaryDirectory() as temporary:
        folder = save_pretrained(net, Path(temporary) / "model", about=about, calibration=calibration, name=name)
        api = HfApi(token=token)
        try:
            address = api.create_repo(name, private=private, exist_ok=True)
            api.upload_folder(repo_id=name, folder_path=folder, commit_message=f"mixmo {__version__}")
        except (HfHubHTTPError, HFValidationError, OSError) as error:
            raise UserError(f"{name} could not be uploaded ({first_line(error)}); see `hf auth login`") from error
    return str(address)


def find(where: Path | str, revision: str | None = None, token: str | None = None) -> Path:
    """The folder of a saved network: given, else shipped with the package, else downloaded from the Hub."""
    path = check_path("where", where)
    name = path.as_posix()
    if path.is_file() and path.suffix.lower() in PICKLES:
        raise UserError(f"{path} is a pickle, which can run anything when it is read; give a folder with {WEIGHTS}")
    if path.is_file():
        raise UserError(f"{path} is a file; give the folder that mixmo.save_pretrained wrote")
    if path.is_dir():
        return path
    if name in shipped():
        return shipped_folder(name)
    hint = near(name)
    if not HUB_NAME.fullmatch(str(where)):
        remedy = hint or "give a saved folder, a run directory or OWNER/NAME on the Hub"
        raise UserError(f"{where} does not exist; {remedy}")
    from huggingface_hub import snapshot_download

    try:
        files = [CONFIG, "*.safetensors", "*.safetensors.index.json", checksums.NAME]
        return Path(snapshot_download(str(where), revision=revision, token=token, allow_patterns=files))
    except Exception as error:  # of the network, the Hub or its client: many kinds, one remedy
        raise UserError(
            f"{where} is no folder here, and could not be had from the Hub ({first_line(error)}); "
            f"{hint or 'check the name'}"
        ) from error


def read_config(folder: Path) -> dict[str, Any]:
    """config.json, once it is known that the weights beside it are no pickle."""
    names = {path.name for path in folder.iterdir()}
    if CONFIG not in names:
        raise UserError(
            f"{folder} is no run directory and no saved network: it has neither recipe.yaml nor {CONFIG}; give the "
            "--out of a `mixmo train`, or a folder that mixmo.save_pretrained wrote"
        )
    pickled = sorted(name for name in names if Path(name).suffix.lower() in PICKLES)
    if pickled and not any(name.startswith(WEIGHTS) for name in names):
        raise UserError(
            f"{folder / pickled[0]} is a pickle, which can run anything when it is read; save the network as {WEIGHTS}"
        )
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{folder / CONFIG} cannot be read ({first_line(error)}); save the network again") from error
    if not isinstance(config, dict) or "mixmo" not in config:
        raise UserError(f"{folder / CONFIG} is of another library; give a folder that mixmo.save_pretrained wrote")
    return config


def check_about(net: Ensemble, about: About | None) -> None:
    """Refuses names that are not as many as the classes, and images that no machine could hold."""
    knows = net.classes if isinstance(net, Wrapped) else classes(net) if isinstance(net, Network) else None
    if about and about.classes and knows not in (None, len(about.classes)):
        raise UserError(f"there are {len(about.classes)} names for the {knows} classes of the network")
    reads = net.size[0] if isinstance(net, Wrapped) else channels(net) if isinstance(net, Network) else None
    if about and reads not in (None, about.size[0]):
        raise UserError(f"size says {about.size[0]} channels, and the network reads {reads}; give those of its images")
    for name, side in () if about is None else (("size", max(about.size[1:])), ("resize", about.resize or 0)):
        if side > LARGEST:
            raise UserError(f"{name} says {side} pixels a side; give the images' own, at most {LARGEST}")


def rounded(net: Ensemble) -> Ensemble:
    """A copy whose weights are as a file of half the size keeps them, in the precision that it had."""
    copied = copy.deepcopy(net)
    put(copied, halve(net.state_dict()))  # which takes them back to their precision
    return copied


def sample(net: Ensemble, about: About | None) -> tuple[Tensor, Tensor]:
    """Two random images, and every head's answer to them."""
    size = input_size(net) if about is None else about.size
    parameter = next(net.parameters())
    images = torch.rand(2, *size, generator=torch.Generator().manual_seed(0), device="cpu").to(parameter)
    with torch.no_grad(), evaluating(net):
        return images, net.each(images)


def same(folder: Path, images: Tensor, answers: Tensor) -> bool:
    """Whether the network in the folder gives these answers."""
    try:
        again = from_pretrained(folder).to(images)
    except UserError:
        return False
    with torch.no_grad():
        return torch.allclose(again.each(images), answers, rtol=1e-3, atol=1e-3 * float(answers.abs().max()) + 1e-6)


def apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors that share memory, as tied weights do, each with its own: safetensors asks for it."""
    seen: set[int] = set()
    result = {}
    for name, tensor in tensors.items():
        place = tensor.untyped_storage().data_ptr()
        result[name] = tensor.clone() if place in seen else tensor
        seen.add(place)
    return result
