"""Co-Mixup: m images mixed into m, each salient and together diverse (Kim et al., ICLR 2021).

Every block of every output takes one of the m inputs, or half of each of two. The labels minimise

    sum_j [ sum_p -s_{p, x_p} - eta log lambda_{x_p} + beta [borders] ] + gamma sum_{j != k} (o_j' A o_k, if above tau)

with o_j how much of each input output j shows and A = (1 - omega) I + omega D, D the distances between the most salient
places of the inputs. As in the authors' code, one output after the other is minimised given the others, in
four rounds; a batch is divided into parts of m = 20, here all at once.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from mixmo.baselines.saliency.gradient import share
from mixmo.baselines.saliency.potts import potts
from mixmo.baselines.saliency.puzzle import divisor

PART = 20  # inputs that are mixed with each other, at most
BLOCKS = 4  # per side
BETA, GAMMA, TAU, ETA, OMEGA = 0.32, 1.0, 0.83, 0.05, 0.001  # as published for CIFAR and Tiny ImageNet
ROUNDS = 4
REGION = 8  # side in pixels of "the most salient place"
SOFT = 5e-4  # bonus of half of each of two inputs
PAIRS = ((0, 1), (0, 2), (1, 2))  # of an output's three most frequent inputs that may share a block


def part_size(batch: int) -> int:
    """The largest number of inputs, at most 20, that divides a batch into equal parts."""
    return divisor(batch, PART)


def compatibility(saliency_PmHW: Tensor) -> Tensor:
    """A (P, m, m): mostly the identity, and a little of the distances between the most salient places."""
    region = min(REGION, saliency_PmHW.shape[-1])
    pooled = F.avg_pool2d(saliency_PmHW, region, stride=1)
    at = pooled.flatten(2).argmax(2)
    place = torch.stack((at // pooled.shape[-1], at % pooled.shape[-1]), dim=2).float()
    distance = (place[:, :, None] - place[:, None]).abs().sum(3)
    m = distance.shape[1]
    distance = distance / distance.sum((1, 2), keepdim=True).clamp_min(1) * m
    return (1 - OMEGA) * torch.eye(m, device=distance.device) + OMEGA * distance


def comixup_masks(saliency_PmHW: Tensor, ratio_Pm: Tensor, start_Pmnn: Tensor) -> Tensor:
    """(P, m, n, n, m) how much of each input the blocks of each output show, from starting labels (P, m, n, n)."""
    parts, m, n = start_Pmnn.shape[:3]
    cost = -share(saliency_PmHW.flatten(0, 1), n).unflatten(0, (parts, m)).permute(0, 2, 3, 1)
    cost = cost - ETA / n**2 * (ratio_Pm + 1e-8).log()[:, None, None]
    near = compatibility(saliency_PmHW)
    masks = F.one_hot(start_Pmnn, m).to(cost.dtype)
    extra = torch.zeros_like(near)  # (P, outputs, inputs)
    done = torch.zeros(parts, dtype=torch.bool, device=cost.device)
    before = objective(cost, masks)
    for i in range(ROUNDS):
        after_round = one_round(cost, masks, near, extra, soft=i > 0)
        masks = torch.where(done[:, None, None, None, None], masks, after_round)
        if i == ROUNDS - 2:
            extra = GAMMA / n**2 * avoided_inputs(masks.sum((2, 3)) > 0).to(cost.dtype)
        now = objective(cost, masks)
        done = done | ((before - now).abs() < 1e-6 * now.abs())
        before = now
    return masks


def one_round(cost_Pnnm: Tensor, masks: Tensor, near_Pmm: Tensor, extra_Pmm: Tensor, soft: bool) -> Tensor:
    """Each output in turn replaced by its best, given the others."""
    n = cost_Pnnm.shape[1]
    outputs = list(masks.unbind(1))
    shown = masks.sum((1, 2, 3))  # (P, m) blocks of each input in all outputs
    for j, mask in enumerate(outputs):
        count = mask.sum((1, 2))
        shown = shown - count
        above = (near_Pmm @ shown[..., None])[..., 0] > TAU * n**2
        # As the authors' program computes it: the threshold selects columns of A.
        crowded = 2 * GAMMA / n**2 * ((above.to(shown.dtype)[:, None] * near_Pmm) @ shown[..., None])[..., 0]
        unary = cost_Pnnm + (crowded + extra_Pmm[:, j])[:, None, None]
        outputs[j] = best_output(unary, count, soft)
        shown = shown + outputs[j].sum((1, 2))
    return torch.stack(outputs, dim=1)


def best_output(unary_Pnnm: Tensor, count_Pm: Tensor, soft: bool) -> Tensor:
    """(P, n, n, m) one output; with `soft`, blocks may be half of two of the inputs that it shows most of."""
    n, m = unary_Pnnm.shape[2:]
    halves, usable = half_labels(count_Pm)
    mixed = unary_Pnnm @ halves.transpose(1, 2)[:, None] - SOFT
    mixed = mixed.masked_fill(~(usable & soft)[:, None, None], torch.inf)
    both = torch.cat((unary_Pnnm, mixed), dim=3)
    distance = (1 - torch.eye(m + len(PAIRS), device=count_Pm.device)).repeat(len(count_Pm), 1, 1)
    distance[:, m:, :m] = torch.where(halves > 0, 0.25, 1.0)
    distance[:, :m, m:] = distance[:, m:, :m].transpose(1, 2)
    label = potts(both, BETA / n**2, distance)
    whole = torch.eye(m, device=count_Pm.device).expand(len(count_Pm), -1, -1)
    weights = torch.cat((whole, halves), dim=1)
    return weights.gather(1, label.flatten(1)[..., None].expand(-1, -1, m)).view(-1, n, n, m)


def half_labels(count_Pm: Tensor) -> tuple[Tensor, Tensor]:
    """(P, 3, m) half of each of two of the three most shown inputs, and (P, 3) whether both are shown at all."""
    count, most = count_Pm.topk(3, dim=1)
    whole = F.one_hot(most, count_Pm.shape[1]).to(count.dtype)
    halves = torch.stack([(whole[:, a] + whole[:, b]) / 2 for a, b in PAIRS], dim=1)
    return halves, torch.stack([count[:, b] > 0 for _, b in PAIRS], dim=1)


def avoided_inputs(shows_Pmm: Tensor) -> Tensor:
    """(P, outputs, inputs) the input that each of two outputs of the same inputs avoids: its first, or its second.

    Outputs of a single input avoid none.
    """
    order = shows_Pmm.cumsum(2) * shows_Pmm
    several = (shows_Pmm.sum(2) > 1)[..., None]
    same = (shows_Pmm[:, :, None] == shows_Pmm[:, None]).all(3)
    has_later, has_earlier = same.triu(1).any(2)[..., None], same.tril(-1).any(2)[..., None]
    return several & ((has_later & (order == 1)) | (has_earlier & (order == 2)))


def objective(cost_Pnnm: Tensor, masks: Tensor) -> Tensor:
    """(P,) the objective of the rounds, without the threshold: they end where it stops decreasing."""
    n = masks.shape[2]
    borders = sum(masks.diff(dim=axis).square().sum((1, 2, 3, 4)) for axis in (2, 3))
    count = masks.sum((2, 3))
    crowd = count.sum(1).square().sum(1) - count.square().sum((1, 2))
    return (cost_Pnnm[:, None] * masks).sum((1, 2, 3, 4)) + BETA / n**2 / 2 * borders + GAMMA / n**2 * crowd


def comixup_mix(images_PmCHW: Tensor, targets_PmK: Tensor, masks: Tensor) -> tuple[Tensor, Tensor]:
    """Mixed images, and labels by how much of each input is shown."""
    parts, m, channels, height, width = images_PmCHW.shape
    n = masks.shape[2]
    tiles = images_PmCHW.reshape(parts, m, channels, n, height // n, n, width // n)
    mixed = torch.einsum("pjyxi,picyhxw->pjcyhxw", masks.to(tiles.dtype), tiles).reshape(images_PmCHW.shape)
    return mixed, masks.mean((2, 3)) @ targets_PmK
