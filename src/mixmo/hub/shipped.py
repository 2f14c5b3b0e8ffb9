"""The networks that come with the package: folders of `save_pretrained`, by their place under hub/weights."""

import json
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path

from mixmo.hub.card import sentence
from mixmo.models.metadata import About

CONFIG = "config.json"
ROOT = Path(str(files("mixmo.hub") / "weights"))


def shipped() -> list[str]:
    """List the networks that come with the package, such as "cifar100/cut-mixmo-wrn28-4", for `mixmo.load`."""
    return sorted(path.parent.relative_to(ROOT).as_posix() for path in ROOT.glob(f"*/*/{CONFIG}"))


def shipped_folder(name: str) -> Path:
    return ROOT / name


def summary(name: str) -> str:
    config = json.loads((shipped_folder(name) / CONFIG).read_text())
    about = About.from_dict(config["about"])
    scores = f"Top1 {100 * about.scores['top1']:.2f} %, NLLc {about.scores['nllc']:.3f}"
    return f"{sentence(config['architecture'])} On {about.dataset}: {scores}"


def near(name: str) -> str:
    """Return a hint if an unknown name is similar to that of a shipped network, else ''."""
    names = shipped()
    close = get_close_matches(name.lower(), names, n=1)
    return f"did you mean '{close[0]}'? Shipped with mixmo: {', '.join(names)}" if close else ""
