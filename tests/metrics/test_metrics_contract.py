"""Contract of every registered metric, diversity measure and detector: a new one is tested by being added."""

import pytest
import torch

from mixmo.metrics import DETECTORS, DIVERSITY, METRICS

metrics = [pytest.param("NK", METRICS[name], id=f"metric-{name}") for name in METRICS]
diversity = [pytest.param("PNK", DIVERSITY[name], id=f"diversity-{name}") for name in DIVERSITY]
detectors = [pytest.param("MNK", DETECTORS[name], id=f"detector-{name}") for name in DETECTORS]

every = pytest.mark.parametrize(("axes", "function"), metrics + diversity + detectors)
every_with_members = pytest.mark.parametrize(("axes", "function"), diversity + detectors)
P, N, K = 3, 70, 6


@pytest.fixture
def data(draw):
    return draw(P, N, K, seed=7)


def call(axes, function, logits_PNK, labels_N):
    if axes == "NK":
        return function(logits_PNK[0], labels_N)
    return function(logits_PNK, labels_N) if axes == "PNK" else function(logits_PNK)


@every
def test_docstring_begins_with_one_line(axes, function):
    line = function.__doc__.partition("\n")[0]
    assert 15 < len(line) < 120
    assert line.endswith((".", ")"))


@every
def test_float32_logits_give_finite_float64_of_the_right_shape(axes, function, data):
    logits, labels = data
    result = call(axes, function, logits.float(), labels)
    assert result.shape == {"NK": (), "PNK": (P, P), "MNK": (N,)}[axes]
    assert result.dtype == torch.float64
    assert result.isfinite().all()


@every
def test_is_deterministic_and_keeps_its_arguments(axes, function, data):
    logits, labels = data
    before = logits.clone(), labels.clone()
    first, second = (call(axes, function, logits, labels) for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(logits, before[0])
    assert torch.equal(labels, before[1])


@every
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_is_the_same_on_a_gpu(axes, function, data):
    logits, labels = data
    result = call(axes, function, logits.cuda(), labels.cuda())
    assert result.is_cuda
    torch.testing.assert_close(result.cpu(), call(axes, function, logits, labels))


@every
def test_the_order_of_the_samples_does_not_matter(axes, function, data):
    logits, labels = data
    order = torch.randperm(N, generator=torch.Generator().manual_seed(0))
    result, shuffled = call(axes, function, logits, labels), call(axes, function, logits[:, order], labels[order])
    torch.testing.assert_close(shuffled, result[order] if axes == "MNK" else result)


@every_with_members
def test_the_order_of_the_members_moves_with_them(axes, function, data):
    logits, labels = data
    order = torch.tensor([2, 0, 1])
    result, shuffled = call(axes, function, logits, labels), call(axes, function, logits[order], labels)
    torch.testing.assert_close(shuffled, result[order][:, order] if axes == "PNK" else result)


@every
def test_the_order_of_the_classes_does_not_matter(axes, function, data):
    logits, labels = data
    order = torch.randperm(K, generator=torch.Generator().manual_seed(1))
    renamed = torch.argsort(order)[labels]
    torch.testing.assert_close(
        call(axes, function, logits[..., order], renamed), call(axes, function, logits, labels), atol=1e-12, rtol=1e-12
    )


@every
def test_a_constant_added_to_a_samples_logits_does_not_matter(axes, function, data):
    logits, labels = data
    shift = torch.linspace(-5, 5, N, dtype=torch.float64)[:, None]
    expected = call(axes, function, logits, labels)
    if function is DETECTORS["energy"]:  # but for the energy, which it lowers by as much
        expected = expected - shift[:, 0]
    torch.testing.assert_close(call(axes, function, logits + shift, labels), expected)


@every
@pytest.mark.parametrize("case", ["right", "wrong", "constant", "huge", "one sample"])
def test_is_finite_for_degenerate_predictors(axes, function, case, data):
    logits, labels = data
    right = 20 * torch.nn.functional.one_hot(labels, K).double().expand(P, N, K)
    logits = {"right": right, "wrong": -right, "constant": 0 * right, "huge": 1e30 * logits, "one sample": logits}[case]
    if case == "one sample":
        logits, labels = logits[:, :1], labels[:1]
    assert call(axes, function, logits, labels).isfinite().all()
