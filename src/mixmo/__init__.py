"""An ensemble for the price of one network: MixMo (ICCV 2021), its baselines and its evaluation on PyTorch.

net = mixmo.create("wrn28_10", classes=100, members=2)
mixer = mixmo.Mixer("cut", alpha=2.0, p=0.5, r=3.0)
for images, labels in loader:
    mix = mixer(images, labels, progress=step / steps)
    mixmo.loss(net(mix), mix).backward()
probabilities = net.eval()(images).softmax(-1)
"""

import importlib
from typing import TYPE_CHECKING, Any

from mixmo._version import __version__

if TYPE_CHECKING:
    from mixmo.calibration.posthoc import Calibration, calibrate
    from mixmo.data.types import Dataset, Split
    from mixmo.exporters.export import export
    from mixmo.hub.folder import from_pretrained, push_to_hub, save_pretrained
    from mixmo.hub.loading import load
    from mixmo.hub.shipped import shipped
    from mixmo.inference.predict import predict
    from mixmo.inference.prediction import Prediction
    from mixmo.mixing.loss import MixMoLoss, loss
    from mixmo.mixing.mixer import Mixer
    from mixmo.mixing.types import Mix
    from mixmo.models import Ensemble, Network, create
    from mixmo.models.metadata import About
    from mixmo.surgery.convert import convert
    from mixmo.surgery.fold import fold
    from mixmo.surgery.wrap import wrap
    from mixmo.surgery.wrapped import Wrapped
    from mixmo.utils.errors import UserError

PUBLIC = {
    "About": "models.metadata",
    "Calibration": "calibration.posthoc",
    "Dataset": "data.types",
    "Ensemble": "models",
    "Mix": "mixing.types",
    "MixMoLoss": "mixing.loss",
    "Mixer": "mixing.mixer",
    "Network": "models",
    "Prediction": "inference.prediction",
    "Split": "data.types",
    "UserError": "utils.errors",
    "Wrapped": "surgery.wrapped",
    "calibrate": "calibration.posthoc",
    "convert": "surgery.convert",
    "create": "models",
    "export": "exporters.export",
    "fold": "surgery.fold",
    "from_pretrained": "hub.folder",
    "load": "hub.loading",
    "loss": "mixing.loss",
    "predict": "inference.predict",
    "push_to_hub": "hub.folder",
    "save_pretrained": "hub.folder",
    "shipped": "hub.shipped",
    "wrap": "surgery.wrap",
}
__all__ = [
    "About",
    "Calibration",
    "Dataset",
    "Ensemble",
    "Mix",
    "MixMoLoss",
    "Mixer",
    "Network",
    "Prediction",
    "Split",
    "UserError",
    "Wrapped",
    "__version__",
    "calibrate",
    "convert",
    "create",
    "export",
    "fold",
    "from_pretrained",
    "load",
    "loss",
    "predict",
    "push_to_hub",
    "save_pretrained",
    "shipped",
    "wrap",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used (PEP 562): `import mixmo` alone does not import torch."""
    if name in PUBLIC:
        return getattr(importlib.import_module(f"mixmo.{PUBLIC[name]}"), name)
    try:
        return importlib.import_module(f"mixmo.{name}")
    except ModuleNotFoundError as error:
        raise AttributeError(f"module 'mixmo' has no attribute '{name}'") from error


def __dir__() -> list[str]:
    return __all__
