"""Augmentation of pixels before the encoders: crop and flip, AugMix, normalise, then pixel mixing (Mixup, CutMix, ...).

Everything is batched on the device and a pure function of uniform numbers, each sample with its own.
"""
