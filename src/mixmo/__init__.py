"""An ensemble for the price of one network: MixMo (ICCV 2021), its baselines and its evaluation on PyTorch.

net = mixmo.create("wrn28_10", classes=100, members=2)
mixer = mixmo.Mixer("cut", alpha=2.0, p=0.5, r=3.0)
for images, labels in loader:
    mix = mixer(images, labels, progress=step / steps)
    mixmo.loss(net(mix), mix).backward()
probabilities = net.eval()(images).softmax(-1)
"""

from mixmo.startup import stoppable

with stoppable():
    from mixmo.about import About
    from mixmo.calibration import Calibration, calibrate
    from mixmo.convert import convert
    from mixmo.errors import UserError
    from mixmo.export import export
    from mixmo.fold import fold
    from mixmo.hub import from_pretrained, load, push_to_hub, save_pretrained
    from mixmo.hub.shipped import shipped
    from mixmo.loss import MixMoLoss, loss
    from mixmo.mixing import Mixer
    from mixmo.models import Ensemble, Network, create
    from mixmo.predict import predict
    from mixmo.prediction import Prediction
    from mixmo.types import Dataset, Mix, Split
    from mixmo.wrapping import Wrapped, wrap

__version__ = "0.1.0"

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
