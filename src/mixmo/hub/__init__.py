"""Trained networks as folders, in this package and on the Hugging Face Hub: weights, config.json, a model card.

README.md            the model card, with its scores
config.json          how to build the network, its metadata (`About`), and how it was trained
model.safetensors    its weights; never a pickle, which could run code when it is read
SHA256SUMS           checksums of the last two, verified when they are read; optional
"""

from mixmo.hub.card import Origin as Origin
