"""An ensemble for the price of one network: MixMo (ICCV 2021), its baselines and its evaluation on PyTorch.

net = mixmo.create("wrn28_10", classes=100, members=2)
mixer = mixmo.Mixer("cut", alpha=2.0, p=0.5, r=3.0)
for images, labels in loader:
    mix = mixer(images, labels, progress=step / steps)
    mixmo.loss(net(mix), mix).backward()
probabilities = net.eval()(images).softmax(-1)
"""

from mixmo.errors import UserError
from mixmo.loss import loss
from mixmo.mixing import Mixer
from mixmo.models import Network, create
from mixmo.types import Dataset, Mix, Split

__version__ = "0.1.0"

__all__ = ["Dataset", "Mix", "Mixer", "Network", "Split", "UserError", "__version__", "create", "loss"]
