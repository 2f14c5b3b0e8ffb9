"""Images of a batch mixed by what the network looks at in them. One file a stage; `methods.py` puts them together."""

from mixmo.baselines.saliency.methods import SALIENCY, SaliencyDraws, Settings, mix_by_saliency

__all__ = ["SALIENCY", "SaliencyDraws", "Settings", "mix_by_saliency"]
