"""What an exported file computes: from images to probabilities and uncertainties."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.special import entr

from mixmo.exporters.file_metadata import OUTPUTS
from mixmo.models.network import Ensemble, Network


class Joined(nn.Module):
    """A folded Network as an ordinary one: encoder, core, one dense layer for all heads and the temperature."""

    def __init__(self, net: Network, temperature: float) -> None:
        super().__init__()
        self.encoder, self.core = net.encoders[0], net.core
        self.count = net.answers
        weight, bias = (torch.cat([head.get_parameter(name) for head in net.heads]) for name in ("weight", "bias"))
        self.head = nn.Linear(weight.shape[1], weight.shape[0])
        self.head.load_state_dict({"weight": weight / temperature, "bias": bias / temperature})

    def forward(self, images_NCHW: Tensor) -> Tensor:
        logits_NMK: Tensor = self.head(self.core(self.encoder(images_NCHW))).unflatten(1, (self.count, -1))
        return logits_NMK


class Members(nn.Module):
    """Any other Ensemble."""

    def __init__(self, net: Ensemble, temperature: float) -> None:
        super().__init__()
        self.net, self.temperature = net, temperature

    def forward(self, images_NCHW: Tensor) -> Tensor:
        logits_NMK = self.net.each(images_NCHW).transpose(0, 1)
        return logits_NMK if self.temperature == 1 else logits_NMK / self.temperature


class Deployed(nn.Module):
    """A network with the outputs that an application needs; the batch is the first dimension of each.

    With z_mn the logits of member m divided by the temperature T, and p_mn their softmax:
    probs               softmax of mean_m z_mn, to which T was fitted: the published ensembles average logits
    members             p_mn
    entropy             H(probs), in nats
    mutual_information  H(mean_m p_mn) - mean_m H(p_mn), in nats; here alone the members' probabilities are averaged
    """

    def __init__(
        self, net: Ensemble, temperature: float = 1.0, mean: Sequence[float] = (), std: Sequence[float] = ()
    ) -> None:
        super().__init__()
        single = isinstance(net, Network) and net.members == 1 and all(isinstance(h, nn.Linear) for h in net.heads)
        self.net = Joined(net, temperature) if single else Members(net, temperature)  # type: ignore[arg-type]
        self.normalises = bool(mean)  # pixels in 0..1
        if self.normalises:
            # One multiplication and one addition: (x - mean) / std = x * scale + shift.
            mean_C, std_C = (torch.tensor(values).view(-1, 1, 1) for values in (mean, std))
            self.register_buffer("scale", 1 / std_C)
            self.register_buffer("shift", -mean_C / std_C)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        if self.normalises:
            images = images * self.get_buffer("scale") + self.get_buffer("shift")
        narrow = next(self.net.parameters()).dtype != images.dtype  # tested first: a graph keeps every conversion
        z_NMK: Tensor = self.net(images.bfloat16()).float() if narrow else self.net(images)
        # Few operations, and the same ones again: .pt2 files run them one by one, and each costs the same.
        members_NMK, probs_NK = z_NMK.softmax(-1), z_NMK.mean(1).softmax(-1)
        entropy_N = entr(probs_NK).sum(-1)
        # Class by class: rounding stays small, and a single member has exactly no information.
        information_N = (entr(members_NMK.mean(1)) - entr(members_NMK).mean(1)).sum(-1).clamp_min(0)
        return dict(zip(OUTPUTS, (probs_NK, members_NMK, entropy_N, information_N), strict=True))
