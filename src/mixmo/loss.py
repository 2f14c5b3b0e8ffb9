"""The weighted loss (paper, equation 1)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mixmo.types import Mix


def loss(logits: Tensor, mix: Mix) -> Tensor:
    """L = sum_i mean_n w_r(kappa_i) CE(y_i, d_i): each head's cross-entropy, weighted by how much it could see.

    `logits` (heads, N, K) are the network's answer to the Mix. In float32 at least, whatever the network's precision.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    entropy = F.cross_entropy(logits.flatten(0, 1), mix.targets.flatten(0, 1), reduction="none")
    return (mix.weights * entropy.view_as(mix.weights)).mean(1).sum()


class MixMoLoss(nn.Module):
    """A criterion for loops that have one for training and evaluation: `criterion(net(mix), mix)`.

    Of a Mix it is `loss`; of plain labels (N,), or soft targets (N, K), the cross-entropy of the ensemble (N, K).

    >>> criterion = MixMoLoss()
    >>> criterion(torch.zeros(4, 10), torch.tensor([1, 2, 3, 4])).item() == torch.tensor(10.0).log().item()
    True
    """

    def forward(self, logits: Tensor, target: Mix | Tensor) -> Tensor:
        return loss(logits, target) if isinstance(target, Mix) else F.cross_entropy(logits.float(), target)
