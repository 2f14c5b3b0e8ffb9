"""The weighted loss against a plain loop, and the errors of targets that do not fit the network."""

import pytest
import torch
from torch import Tensor

import mixmo
from mixmo.mixing.loss import MixMoLoss, loss
from mixmo.mixing.types import Mix


def mixed(targets: Tensor) -> Mix:
    weights = torch.tensor([[0.5, 1.0, 1.5], [1.5, 1.0, 0.5]])
    return Mix(torch.zeros(2, 3, 3, 8, 8), torch.full((2, 3, 1, 1, 1), 0.5), targets, weights)


LOGITS = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([[0, 1, 4], [3, 2, 1]])


def by_hand(mix: Mix) -> float:
    """Equation 1 as a loop."""
    total = 0.0
    for head in range(2):
        for n in range(3):
            log_p = LOGITS[head, n].log_softmax(0)
            target = mix.targets[head, n]
            entropy = -log_p[target] if target.dim() == 0 else -(target * log_p).sum()
            total += float(mix.weights[head, n] * entropy) / 3
    return total


@pytest.mark.parametrize("targets", [LABELS, torch.nn.functional.one_hot(LABELS, 5) * 0.9 + 0.02], ids=["hard", "soft"])
def test_equals_a_loop_over_heads_and_samples(targets: Tensor) -> None:
    mix = mixed(targets)
    assert loss(LOGITS, mix).item() == pytest.approx(by_hand(mix), rel=1e-5)
    assert torch.equal(MixMoLoss()(LOGITS, mix), loss(LOGITS, mix))


def test_soft_targets_may_be_bfloat16() -> None:
    """Labels smoothed in bfloat16 sum to one but for rounding."""
    soft = (torch.nn.functional.one_hot(LABELS, 5) * 0.9 + 0.02).bfloat16()
    assert not torch.equal(soft.float().sum(-1), torch.ones(2, 3))
    torch.testing.assert_close(loss(LOGITS, mixed(soft)).item(), by_hand(mixed(soft.float())), rtol=1e-2, atol=0)


def test_labels_may_have_any_integer_type() -> None:
    expected = loss(LOGITS, mixed(LABELS))
    for same in (LABELS.int(), LABELS.byte(), torch.nn.functional.one_hot(LABELS, 5)):
        assert torch.allclose(loss(LOGITS, mixed(same)), expected)


@pytest.mark.parametrize(
    ("targets", "word"),
    [
        (LABELS + (LABELS == 4), "label is 5"),
        (LABELS - 100, "label is -100"),  # which cross-entropy would ignore
        (LABELS.float(), "integer"),
        (torch.full((2, 3, 4), 0.25), "shape"),
        (LABELS[..., None], "shape"),
        (LABELS[:, :2], "shape"),
        (torch.tensor([0.0, 1, 1, 0, 1]).expand(2, 3, 5), "sums to 3"),
        (torch.full((2, 3, 5), float("nan")), "sums to nan"),
    ],
)
def test_targets_that_do_not_fit_raise(targets: Tensor, word: str) -> None:
    for call in (lambda: loss(LOGITS, mixed(targets)), lambda: MixMoLoss()(LOGITS[0], targets[0])):
        with pytest.raises(mixmo.UserError, match=word):
            call()


def test_logits_of_another_batch_raise() -> None:
    for logits in (LOGITS[0], torch.zeros(3, 3, 5)):
        with pytest.raises(mixmo.UserError, match="logits"):
            loss(logits, mixed(LABELS))
    with pytest.raises(mixmo.UserError, match="Mix"):
        loss(LOGITS, LABELS)  # type: ignore[arg-type]


def test_compiles_without_breaks() -> None:
    compiled = torch.compile(loss, backend="eager", fullgraph=True)
    for targets in (LABELS, torch.nn.functional.one_hot(LABELS, 5)):
        assert torch.equal(compiled(LOGITS, mixed(targets)), loss(LOGITS, mixed(targets)))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_labels_of_every_integer_type_give_the_same_loss(dtype: torch.dtype) -> None:
    labels = torch.tensor([0, 2, 1, 2])
    images, logits = torch.randn(4, 3, 8, 8), torch.randn(2, 4, 3)
    losses = []
    for given in (labels, labels.to(dtype)):
        mix = mixmo.Mixer("cut")(images, given, generator=torch.Generator().manual_seed(0))
        losses.append(loss(logits, mix))
    assert losses[0] == losses[1]
    with pytest.raises(mixmo.UserError, match="a label is -1; classes are 0 to K - 1"):
        mixmo.Mixer("cut")(images, labels.to(torch.int8) - 1)
