"""The folder of a saved network by its path or name, and its config.json."""

import re
from pathlib import Path
from typing import Any

from mixmo.hub.architecture import class_count
from mixmo.hub.shipped import CONFIG, near, shipped, shipped_folder
from mixmo.models import Ensemble, Network
from mixmo.models.metadata import About
from mixmo.models.network import channels
from mixmo.storage import checksums
from mixmo.storage.plain_json import parse_json
from mixmo.surgery.wrapped import Wrapped
from mixmo.utils.errors import UserError, check_path, first_line

WEIGHTS = "model.safetensors"
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
FILES = [CONFIG, "*.safetensors", "*.safetensors.index.json", checksums.NAME]  # all that is downloaded


def find(where: Path | str, revision: str | None = None, token: str | None = None) -> Path:
    """Return the folder of a saved network: a path, else one of the package, else downloaded from the Hub."""
    path = check_path("where", where)
    if path.is_file():
        raise UserError(f"{path} is a file; give the folder that mixmo.save_pretrained wrote")
    if path.is_dir():
        return path
    name = path.as_posix()
    if name in shipped():
        return shipped_folder(name)
    hint = near(name)
    if not HUB_NAME.fullmatch(str(where)):
        raise UserError(f"{where} does not exist; {hint or 'give a saved folder, a run directory or OWNER/NAME'}")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(str(where), revision=revision, token=token, allow_patterns=FILES))
    except Exception as error:  # of the connection, the Hub or its client: many kinds, one remedy
        problem = f"no folder, and cannot be downloaded from the Hub ({first_line(error)})"
        raise UserError(f"{where} is {problem}; {hint or 'check the name'}") from error


def read_config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    if not path.is_file():
        raise UserError(
            f"{folder} is neither a run directory nor a saved network: it has neither recipe.yaml nor {CONFIG}"
        )
    try:
        config = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({first_line(error)}); save the network again") from error
    if not isinstance(config, dict) or "mixmo" not in config:
        raise UserError(f"{path} is of another library; give a folder that mixmo.save_pretrained wrote")
    return config


def check_about(net: Ensemble, about: About | None) -> None:
    """Raise a UserError if the metadata name other classes or channels than the network has."""
    if about is None or not isinstance(net, Network | Wrapped):
        return
    count, reads = (net.classes, net.size[0]) if isinstance(net, Wrapped) else (class_count(net), channels(net))
    names = len(about.classes or ()) or None
    if (None not in (names, count) and names != count) or reads not in (None, about.size[0]):
        given = f"about has {names} class names and size {about.size}"
        raise UserError(f"{given}; the network has {count} classes and reads {reads} channels")
