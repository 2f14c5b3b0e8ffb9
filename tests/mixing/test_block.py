"""The mixing block against the reference."""

import numpy as np
import torch

from mixmo.mixing.block import mixing_block


def test_mixing_block_equals_the_reference(reference: dict[str, np.ndarray]) -> None:
    encodings = torch.from_numpy(reference["mix/l"]).unbind(0)
    mask = torch.from_numpy(reference["mix/mask0_fp16"]).float()
    mixed = mixing_block(encodings, torch.stack((mask, 1 - mask)))
    torch.testing.assert_close(mixed, torch.from_numpy(reference["mix/train_M2"]))
    torch.testing.assert_close(mixing_block(encodings, None), torch.from_numpy(reference["mix/inference_M2"]))
