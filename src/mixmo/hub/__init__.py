"""Trained networks as folders, in this package and on the Hugging Face Hub: weights, config.json, a model card.

README.md            the model card, with its scores
config.json          how to build the network, its metadata (`About`), and how it was trained
model.safetensors    its weights; never a pickle, which could run code when it is read
SHA256SUMS           checksums of the last two, verified when they are read; optional
"""

from mixmo.hub.folder import from_pretrained, push_to_hub, save_pretrained
from mixmo.hub.loading import load
from mixmo.hub.origin import Origin

__all__ = ["Origin", "from_pretrained", "load", "push_to_hub", "save_pretrained"]
