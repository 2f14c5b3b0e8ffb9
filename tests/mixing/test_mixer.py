"""Ratios, masks, roles and loss weights against the reference, the formulas and plain loops."""

import math
from collections import Counter

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import mixmo
from mixmo.mixing.masks import MASKS
from mixmo.mixing.mixer import UNMASKED, MixDraws, Mixer, cyclic_keys, loss_weights

EVERY = [*MASKS, *UNMASKED]


def draws_of(mixer: Mixer, n: int = 64, size: int = 16, seed: int = 0) -> MixDraws:
    return mixer.draw(n, size, size, torch.device("cpu"), torch.Generator().manual_seed(seed))


def coefficients_of(mixer: Mixer, draws: MixDraws, chance: float = 1.0, size: int = 16) -> torch.Tensor:
    return mixer.coefficients(draws, torch.tensor(chance), size, size)


def test_loss_weights_equal_the_reference(reference: dict[str, np.ndarray]) -> None:
    kappa = torch.from_numpy(reference["weights/kappa"])
    for r, known in zip(reference["weights/r"], reference["weights/w2"], strict=True):
        ours = loss_weights(torch.stack((kappa, 1 - kappa)), float(r))
        np.testing.assert_allclose(ours.T, known, atol=1e-12)


@pytest.mark.parametrize("members", [2, 3, 5])
@pytest.mark.parametrize("r", [1.0, 3.0, math.inf])
def test_loss_weights_equal_a_loop(members: int, r: float) -> None:
    kappa = torch.rand(members, 7, dtype=torch.float64)
    weights = loss_weights(kappa, r)
    for n in range(7):
        roots = [kappa[m, n].item() ** (1 / r) for m in range(members)]
        for m in range(members):
            assert weights[m, n].item() == pytest.approx(members * roots[m] / sum(roots))


def test_an_invisible_input_gets_no_weight() -> None:
    weights = loss_weights(torch.tensor([[0.0], [1.0]]), 3.0)
    assert weights.flatten().tolist() == [0.0, 2.0]


@pytest.mark.parametrize("mask", EVERY)
@pytest.mark.parametrize("members", [2, 3, 4])
def test_coefficients_are_a_partition(mask: str, members: int) -> None:
    """Contract of every mask and M: shares sum to one everywhere, never negative; a masked member is there or not."""
    mixer = Mixer(mask, members=members)
    draws = draws_of(mixer)
    shares = coefficients_of(mixer, draws)
    torch.testing.assert_close(shares.sum(0), torch.ones_like(shares[0]))
    assert shares.min() >= 0
    if mask in MASKS:
        k = int(draws.batch[1, 0] * members)
        assert set(shares[k].unique().tolist()) <= {0.0, 1.0}
        assert shares.shape == (members, 64, 1, 16, 16)


@pytest.mark.parametrize("mask", MASKS)
def test_coefficients_have_the_shape_of_the_features(mask: str) -> None:
    mix = Mixer(mask, p=1.0, stride=2)(torch.randn(4, 3, 15, 48), torch.arange(4))
    assert mix.coefficients.shape == (2, 4, 1, 8, 24)


def test_one_member_is_not_mixed() -> None:
    assert Mixer("cut", members=1, p=1.0)(torch.randn(4, 3, 8, 8), torch.arange(4)).coefficients.unique() == 1


def test_more_than_two_members_equal_a_loop() -> None:
    """Appendix C: a region of member k over sum_{i != k} kappa_i / (1 - kappa_k) l_i."""
    mixer = Mixer("cut", members=3)
    draws = draws_of(mixer, n=8)
    shares = coefficients_of(mixer, draws)
    kappa = draws.gamma / draws.gamma.sum(0)
    k = int(draws.batch[1, 0] * 3)
    for n in range(8):
        region = MASKS["cut"].draw(kappa[k, n : n + 1], draws.mask[n : n + 1], 16, 16)[0]
        for m in range(3):
            expected = region if m == k else (1 - region) * kappa[m, n] / (1 - kappa[k, n])
            torch.testing.assert_close(shares[m, n, 0], expected)


def test_mask_or_linear_is_drawn_once_per_batch_with_probability_p() -> None:
    mixer = Mixer("cut")
    binary = 0
    for seed in range(400):
        draws = draws_of(mixer, n=4, size=8, seed=seed)
        shares = coefficients_of(mixer, draws, chance=0.3, size=8)
        per_sample = [set(shares[0, n].unique().tolist()) <= {0.0, 1.0} for n in range(4)]
        assert len(set(per_sample)) == 1
        binary += per_sample[0]
    assert binary / 400 == pytest.approx(0.3, abs=0.07)


def test_ratios_are_symmetric_and_realised_kappa_matches_the_reference(reference: dict[str, np.ndarray]) -> None:
    """The box loses area at the border (mean 0.305 for 0.497 requested); the choice of k restores symmetry."""
    mixer = Mixer("cut")
    small, first = [], []
    for seed in range(60):
        draws = draws_of(mixer, n=256, size=32, seed=seed)
        mix = mixer.assemble(
            torch.zeros(2, 256, 1, 1, 1), torch.zeros(2, 256).long(), coefficients_of(mixer, draws, 1.0, 32), draws
        )
        kappa = 1 / (1 + (mix.weights[1] / mix.weights[0]) ** 3)  # w_3 turned back into kappa
        first.append(kappa)
        small.append(kappa if draws.batch[1, 0] < 0.5 else 1 - kappa)
    realised = torch.cat(small).numpy()
    known = reference["cutmix/realised_kappa"]
    assert realised.mean() == pytest.approx(known.mean(), abs=0.005)
    np.testing.assert_allclose(np.quantile(realised, [0.1, 0.5, 0.9]), np.quantile(known, [0.1, 0.5, 0.9]), atol=0.02)
    assert torch.cat(first).mean().item() == pytest.approx(0.5, abs=0.05)


def test_kappa_is_dirichlet() -> None:
    """Dirichlet(alpha): mean 1/M, variance (M - 1) / (M^2 (M alpha + 1))."""
    mixer = Mixer("linear", members=3, alpha=2.0)
    kappa = coefficients_of(mixer, draws_of(mixer, n=40_000))[..., 0, 0, 0]
    assert kappa.mean(1).tolist() == pytest.approx([1 / 3] * 3, abs=0.005)
    assert kappa.var(1).tolist() == pytest.approx([2 / (9 * 7)] * 3, rel=0.03)


def test_tiny_alpha_gives_finite_weights() -> None:
    mixer = Mixer("cut", alpha=1e-4)
    mix = mixer(torch.randn(64, 3, 8, 8), torch.zeros(64, dtype=torch.long))
    assert mix.coefficients.isfinite().all()
    assert mix.weights.isfinite().all()


def test_mimo_is_an_even_sum_with_equal_weights() -> None:
    mix = Mixer("sum", r=1.0)(torch.randn(8, 3, 8, 8), torch.arange(8))
    assert mix.coefficients.unique().tolist() == [0.5]
    assert mix.weights.unique().tolist() == [1.0]


def test_the_same_generator_gives_the_same_mix() -> None:
    images, labels = torch.randn(8, 3, 8, 8), torch.arange(8)
    one, two, other = (Mixer("cut")(images, labels, generator=torch.Generator().manual_seed(s)) for s in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(one[:4], two[:4], strict=True))
    assert not torch.equal(one.images, other.images)


def test_targets_follow_their_images() -> None:
    labels = torch.arange(16)
    images = labels.float()[:, None, None, None].expand(16, 3, 8, 8)
    mix = Mixer("cut", members=3)(images, labels)
    assert torch.equal(mix.images[..., 0, 0, 0].long(), mix.targets)


@pytest.mark.parametrize("association", ["random", "predominant"])
def test_associations_move_targets_and_weights_together(association: str) -> None:
    mixer = Mixer("linear", members=2, r=1.0, association=association)
    mix = mixer(torch.randn(500, 3, 8, 8), torch.arange(500))
    own = Mixer("linear", members=2, r=1.0)
    kappa = mix.coefficients.mean((2, 3, 4))
    generator = torch.Generator().manual_seed(0)
    twin = own(torch.zeros(500, 1, 8, 8), torch.arange(500), generator=generator)
    other = mixer(torch.zeros(500, 1, 8, 8), torch.arange(500), generator=generator.manual_seed(0))
    moved = (other.targets != twin.targets).any(0)
    assert torch.equal(other.targets.sort(0).values, twin.targets.sort(0).values)
    if association == "predominant":
        torch.testing.assert_close(mix.weights, 2 * kappa.sort(0, descending=True).values)
    else:
        assert moved.float().mean().item() == pytest.approx(0.5, abs=0.1)
        assert (other.weights[0] > other.weights[1]).float().mean().item() == pytest.approx(0.5, abs=0.1)
        torch.testing.assert_close(other.weights[:, moved], twin.weights[:, moved].flip(0))


@pytest.mark.parametrize("association", ["random", "predominant"])
def test_associations_move_soft_targets_as_labels(association: str) -> None:
    mixer, labels = Mixer("linear", members=3, association=association), torch.arange(10)
    hard, soft = (
        mixer(torch.zeros(10, 1, 8, 8), targets, generator=torch.Generator().manual_seed(0)).targets
        for targets in (labels, torch.eye(10))
    )
    assert torch.equal(soft, torch.eye(10)[hard])


def test_random_associations_are_cyclic_and_equally_likely() -> None:
    order = cyclic_keys(torch.rand(3000, generator=torch.Generator().manual_seed(0)), 3).argsort(0)
    times = Counter(map(tuple, order.T.tolist()))
    assert set(times) == {(0, 1, 2), (1, 2, 0), (2, 0, 1)}
    assert all(abs(count - 1000) < 130 for count in times.values())  # five standard deviations


def test_one_head_predicts_interpolated_labels() -> None:
    """Ablation 1/1 is CutMix in feature space: CE against sum_i kappa_i y_i, once."""
    labels = torch.nn.functional.one_hot(torch.arange(6), 6).float()
    images = torch.randn(6, 3, 16, 16)
    mix = Mixer("cut", p=1.0, association="interpolated")(images, labels)
    logits = torch.randn(1, 6, 6)
    kappa = mix.coefficients.mean((2, 3, 4))
    shown = images.flatten(1).abs().sum(1)  # an image is known by its sum: its label is its place in the batch
    expected = torch.zeros(6, 6)
    for n in range(6):
        for m in range(2):
            label = (shown - mix.images[m, n].abs().sum()).abs().argmin()
            expected[n, label] += kappa[m, n]
    torch.testing.assert_close(mix.targets[0], expected)
    entropy = -(expected * logits[0].log_softmax(-1)).sum(-1)
    torch.testing.assert_close(mixmo.loss(logits, mix), entropy.mean())
    with pytest.raises(mixmo.UserError, match="soft targets"):
        Mixer(association="interpolated")(images, torch.arange(6))


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"mask": "cutt"}, "'cut'"),
        ({"mask": None}, "mask"),
        ({"members": 0}, "members"),
        ({"p": 1.5}, "p = 1.5"),
        ({"alpha": 0.0}, "alpha"),
        ({"r": 0.0}, "r = 0"),
        ({"stride": 0}, "stride"),
        ({"association": "owm"}, "'own'"),
    ],
)
def test_fields_out_of_range_raise(fields: dict[str, object], word: str) -> None:
    with pytest.raises(mixmo.UserError, match=word):
        Mixer(**fields)  # type: ignore[arg-type]


def test_batches_that_do_not_fit_raise() -> None:
    images, labels = torch.randn(4, 3, 8, 8), torch.arange(4)
    for wrong in (torch.arange(3), torch.arange(5), torch.tensor(1)):
        with pytest.raises(mixmo.UserError, match="labels"):
            Mixer("cut")(images, wrong)
    for not_a_batch in (images[0], images.numpy(), None):
        with pytest.raises(mixmo.UserError, match="images"):
            Mixer("cut")(not_a_batch, labels)  # type: ignore[arg-type]
    for progress in (2, -0.1, math.nan):
        with pytest.raises(mixmo.UserError, match="progress"):
            Mixer("cut")(images, labels, progress)
    assert Mixer("cut")(images, [0, 1, 2, 3]).targets.shape == (2, 4)  # type: ignore[arg-type]


@pytest.mark.parametrize("mask", [*MASKS, "linear"])
def test_draws_do_not_depend_on_the_default_precision(mask):
    images, labels = torch.randn(64, 3, 8, 8), torch.arange(64)
    draw = [mixmo.Mixer(mask, p=1.0)(images, labels, generator=torch.Generator().manual_seed(0))]
    torch.set_default_dtype(torch.bfloat16)  # as Lightning's precision "bf16-true" does around a step
    try:
        draw.append(mixmo.Mixer(mask, p=1.0)(images, labels, generator=torch.Generator().manual_seed(0)))
    finally:
        torch.set_default_dtype(torch.float32)
    for usual, other in zip(*draw, strict=True):
        assert (usual is other is None) or torch.equal(usual, other)


class Copied(TorchDispatchMode):
    """Counts the tensors that are made of numbers of the host. On a GPU each would be a copy that waits for it."""

    count = 0

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        self.count += function is torch.ops.aten.lift_fresh.default
        return function(*arguments, **(named or {}))


@pytest.mark.parametrize("mask", EVERY)
def test_nothing_is_copied_from_the_host(mask: str) -> None:
    images, labels = torch.randn(4, 3, 16, 16), torch.arange(4)
    with Copied() as copied:
        torch.tensor(0.5)
        assert copied.count == 1  # it can tell
        Mixer(mask)(images, labels, progress=0.5)
    assert copied.count == 1
