"""Trained networks as folders and on the Hugging Face Hub: weights in safetensors, config.json, a model card.

README.md            the model card, with its scores
config.json          how to build the network, and what `About` says of it
model.safetensors    its weights; never a pickle, which could run anything when it is read
"""

from mixmo.hub.folder import from_pretrained, push_to_hub, save_pretrained
from mixmo.hub.load import load

__all__ = ["from_pretrained", "load", "push_to_hub", "save_pretrained"]
