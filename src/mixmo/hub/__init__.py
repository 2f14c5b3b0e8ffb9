"""Trained networks as folders, in this package and on the Hugging Face Hub: weights, config.json, a model card.

README.md            the model card, with its scores
config.json          how to build the network, what `About` says of it, and where it comes from
model.safetensors    its weights; never a pickle, which could run anything when it is read
SHA256SUMS           checksums of these two, verified when they are read; a folder without it is taken as it is
"""

from mixmo.hub.folder import from_pretrained, push_to_hub, save_pretrained
from mixmo.hub.loading import load
from mixmo.hub.origin import Origin

__all__ = ["Origin", "from_pretrained", "load", "push_to_hub", "save_pretrained"]
