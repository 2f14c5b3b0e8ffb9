"""Augmentation of pixels before the encoders.

In the order of a batch: crop and flip; AugMix, TrivialAugment, RandAugment or colour jitter; normalise; random erasing;
pixel mixing (Mixup, CutMix, ...).

Everything is batched on the device and a pure function of uniform numbers, each sample with its own.
"""
