"""An ensemble for the price of one network: MixMo (ICCV 2021), its baselines and its evaluation on PyTorch.

net = mixmo.create("wrn28_10", classes=100, members=2)
mixer = mixmo.Mixer("cut", alpha=2.0, p=0.5, r=3.0)
for images, labels in loader:
    mix = mixer(images, labels, progress=step / steps)
    mixmo.loss(net(mix), mix).backward()
probabilities = net.eval()(images).softmax(-1)
"""

import importlib.util
from typing import TYPE_CHECKING, Any

from mixmo._version import __version__ as __version__
from mixmo.utils import torchvision_ops

_PUBLIC = {  # the public names by module; each is imported when it is first used, so that `import mixmo` is fast
    "calibration.posthoc": ("Calibration", "calibrate"),
    "data.types": ("Dataset", "Split"),
    "exporters.export": ("Exported", "export"),
    "hub.folder": ("from_pretrained", "push_to_hub", "save_pretrained"),
    "hub.loading": ("load",),
    "hub.shipped": ("shipped",),
    "inference.compiled": ("compile",),
    "inference.predict": ("predict",),
    "inference.prediction": ("Prediction",),
    "mixing.loss": ("MixMoLoss", "loss"),
    "mixing.mixer": ("Mixer",),
    "mixing.types": ("Mix",),
    "models": ("Ensemble", "Network", "create"),
    "models.metadata": ("About",),
    "reports.build": ("report",),
    "surgery.convert": ("convert",),
    "surgery.fold": ("fold",),
    "surgery.wrap": ("wrap",),
    "surgery.wrapped": ("Wrapped",),
    "utils.errors": ("UserError",),
}
_HOME = {name: module for module, names in _PUBLIC.items() for name in names}

if TYPE_CHECKING:  # the same for type checkers
    from mixmo.calibration.posthoc import Calibration as Calibration
    from mixmo.calibration.posthoc import calibrate as calibrate
    from mixmo.data.types import Dataset as Dataset
    from mixmo.data.types import Split as Split
    from mixmo.exporters.export import Exported as Exported
    from mixmo.exporters.export import export as export
    from mixmo.hub.folder import from_pretrained as from_pretrained
    from mixmo.hub.folder import push_to_hub as push_to_hub
    from mixmo.hub.folder import save_pretrained as save_pretrained
    from mixmo.hub.loading import load as load
    from mixmo.hub.shipped import shipped as shipped
    from mixmo.inference.compiled import compile as compile
    from mixmo.inference.predict import predict as predict
    from mixmo.inference.prediction import Prediction as Prediction
    from mixmo.mixing.loss import MixMoLoss as MixMoLoss
    from mixmo.mixing.loss import loss as loss
    from mixmo.mixing.mixer import Mixer as Mixer
    from mixmo.mixing.types import Mix as Mix
    from mixmo.models import Ensemble as Ensemble
    from mixmo.models import Network as Network
    from mixmo.models import create as create
    from mixmo.models.metadata import About as About
    from mixmo.reports.build import report as report
    from mixmo.surgery.convert import convert as convert
    from mixmo.surgery.fold import fold as fold
    from mixmo.surgery.wrap import wrap as wrap
    from mixmo.surgery.wrapped import Wrapped as Wrapped
    from mixmo.utils.errors import UserError as UserError
else:
    __all__ = sorted(["__version__", *_HOME])

    def __getattr__(name: str) -> Any:
        """Import a public name or a subpackage when it is first used (PEP 562)."""
        if name in _HOME:
            globals()[name] = value = getattr(importlib.import_module(f"mixmo.{_HOME[name]}"), name)
            return value
        if name.startswith("_") or importlib.util.find_spec(f"mixmo.{name}") is None:
            raise AttributeError(f"module 'mixmo' has no attribute '{name}'")
        return importlib.import_module(f"mixmo.{name}")

    def __dir__() -> list[str]:
        return __all__


torchvision_ops.install()
