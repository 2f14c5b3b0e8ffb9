"""Baselines that mix images by saliency (Puzzle-Mix, Co-Mixup): one file per stage; `methods.py` combines them."""

from mixmo.baselines.saliency.methods import SALIENCY, SaliencyDraws, Settings, mix_by_saliency

__all__ = ["SALIENCY", "SaliencyDraws", "Settings", "mix_by_saliency"]
