"""What an exported file computes: from images to probabilities and how sure they are."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mixmo.export.metadata import OUTPUTS
from mixmo.models.network import Ensemble, Network


class Joined(nn.Module):
    """A folded Network as the ordinary network that it is: one encoder, the core, one dense layer for all heads."""

    def __init__(self, net: Network) -> None:
        super().__init__()
        self.encoder, self.core = net.encoders[0], net.core
        self.answers = net.answers
        weight, bias = (torch.cat([head.get_parameter(name) for head in net.heads]) for name in ("weight", "bias"))
        self.head = nn.Linear(weight.shape[1], weight.shape[0])
        self.head.load_state_dict({"weight": weight, "bias": bias})

    def forward(self, images_NCHW: Tensor) -> Tensor:
        answers_NMK: Tensor = self.head(self.core(self.encoder(images_NCHW))).unflatten(1, (self.answers, -1))
        return answers_NMK


class Members(nn.Module):
    """Any other Ensemble."""

    def __init__(self, net: Ensemble) -> None:
        super().__init__()
        self.net = net

    def forward(self, images_NCHW: Tensor) -> Tensor:
        return self.net.each(images_NCHW).transpose(0, 1)


class Deployed(nn.Module):
    """A network with its answers as an application wants them; everything that is batched has the batch first.

    With z_mn the logits of member m divided by the temperature T, and p_mn their softmax:
    probs               softmax of mean_m z_mn: the ensemble of the published scores averages logits; so the mean is
                        divided by T too, which is where T was fitted
    members             p_mn
    entropy             H(probs), in nats
    mutual_information  H(mean_m p_mn) - mean_m H(p_mn), in nats; here alone the members' probabilities are averaged
    """

    def __init__(
        self, net: Ensemble, temperature: float = 1.0, mean: Sequence[float] = (), std: Sequence[float] = ()
    ) -> None:
        """With `mean` and `std`, the graph takes pixels in 0..1 and normalises them."""
        super().__init__()
        single = isinstance(net, Network) and net.members == 1 and all(isinstance(h, nn.Linear) for h in net.heads)
        self.net = Joined(net) if single else Members(net)  # type: ignore[arg-type]
        self.temperature = temperature
        self.normalises = bool(mean)
        if self.normalises:
            # One multiplication and one addition: (x - mean) / std = x * scale + shift.
            mean_C, std_C = (torch.tensor(values).view(-1, 1, 1) for values in (mean, std))
            self.register_buffer("scale", 1 / std_C)
            self.register_buffer("shift", -mean_C / std_C)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        if self.normalises:
            images = images * self.get_buffer("scale") + self.get_buffer("shift")
        narrow = next(self.net.parameters()).dtype != images.dtype  # asked first: a graph keeps every conversion
        z_NMK: Tensor = self.net(images.bfloat16()).float() if narrow else self.net(images)
        if self.temperature != 1:
            z_NMK = z_NMK / self.temperature
        log_NMK = z_NMK.log_softmax(-1)
        members_NMK = log_NMK.exp()
        if z_NMK.shape[1] == 1:  # exactly zero, as rounding would rank the samples
            log_NK, information_N = log_NMK[:, 0], torch.zeros_like(z_NMK[:, 0, 0])
        else:
            log_NK = z_NMK.mean(1).log_softmax(-1)
            mean_NK = members_NMK.mean(1)
            log_mean_NK = mean_NK.clamp_min(torch.finfo(mean_NK.dtype).tiny).log()  # 0 log 0 = 0
            own_N = (members_NMK * log_NMK).sum((1, 2)) / z_NMK.shape[1]
            information_N = (own_N - (mean_NK * log_mean_NK).sum(-1)).clamp_min(0)
        probs_NK = log_NK.exp()
        entropy_N = -(probs_NK * log_NK).sum(-1)
        return dict(zip(OUTPUTS, (probs_NK, members_NMK, entropy_N, information_N), strict=True))
