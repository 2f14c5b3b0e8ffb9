"""torch-uncertainty: its routines and metrics take an ensemble's members in their own layouts."""

from torch import Tensor, nn

from mixmo.models.network import Ensemble


class Estimators(nn.Module):
    """The members as torch-uncertainty's routines read an ensemble: logits (M N, K), all samples of a member together.

    `ClassificationRoutine(Estimators(net), num_classes=K, loss=None, is_ensemble=True)` then evaluates it. The routine
    averages the members' probabilities, where the scores of this package average their logits.
    """

    def __init__(self, net: Ensemble) -> None:
        super().__init__()
        self.net = net

    def forward(self, images_NCHW: Tensor) -> Tensor:
        return self.net.each(images_NCHW).flatten(0, 1)


def by_sample(members_MNK: Tensor) -> Tensor:
    """The members as its ensemble metrics (Disagreement, MutualInformation, ...) read them: (N, M, K), say
    `MutualInformation()(by_sample(prediction.members))`."""
    return members_MNK.transpose(0, 1)
