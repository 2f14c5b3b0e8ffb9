"""The mixing block against the reference; unmixing against a loop."""

import numpy as np
import torch

from mixmo.mixing.block import mixing_block, unmix


def test_mixing_block_equals_the_reference(reference: dict[str, np.ndarray]) -> None:
    encodings = torch.from_numpy(reference["mix/l"]).unbind(0)
    mask = torch.from_numpy(reference["mix/mask0_fp16"]).float()
    mixed = mixing_block(encodings, torch.stack((mask, 1 - mask)))
    torch.testing.assert_close(mixed, torch.from_numpy(reference["mix/train_M2"]))
    torch.testing.assert_close(mixing_block(encodings, None), torch.from_numpy(reference["mix/inference_M2"]))


def test_unmixing_pools_what_each_head_sees() -> None:
    """A head's features are the mean over its own region; the mask is coarser in the last maps than in the first."""
    features = torch.randn(3, 5, 2, 4)
    mask = torch.zeros(3, 1, 4, 8)
    mask[:, :, :2, 2:] = 1  # three of the eight positions of the last maps
    pooled = unmix(features, torch.stack((mask, 1 - mask)))
    inside = features[:, :, 0, 1:].mean(-1)
    torch.testing.assert_close(pooled[0], inside)
    torch.testing.assert_close(pooled[1], (features.sum((-2, -1)) - 3 * inside) / 5)


def test_unmixing_without_a_mask_is_plain_pooling() -> None:
    features = torch.randn(3, 5, 2, 4)
    for visible in (torch.ones(2, 3, 1, 4, 8), torch.full((2, 3, 1, 1, 1), 0.3)):
        torch.testing.assert_close(unmix(features, visible), features.mean((-2, -1)).expand(2, -1, -1))
