"""What holds for everything registered: a new score is tested by being added."""

import pytest
import torch

from mixmo.metrics import DETECTORS, DIVERSITY, METRICS
from mixmo.utils.errors import UserError

metrics = [pytest.param("NK", METRICS[name], id=f"metric-{name}") for name in METRICS]
diversity = [pytest.param("PNK", DIVERSITY[name], id=f"diversity-{name}") for name in DIVERSITY]
detectors = [pytest.param("MNK", DETECTORS[name], id=f"detector-{name}") for name in DETECTORS]

every = pytest.mark.parametrize(("axes", "function"), metrics + diversity + detectors)
every_with_members = pytest.mark.parametrize(("axes", "function"), diversity + detectors)
every_with_labels = pytest.mark.parametrize(("axes", "function"), metrics + diversity)
P, N, K = 3, 70, 6


@pytest.fixture
def data(draw):
    return draw(P, N, K, seed=7)


def call(axes, function, logits_PNK, labels_N):
    if axes == "NK":
        return function(logits_PNK[0], labels_N)
    return function(logits_PNK, labels_N) if axes == "PNK" else function(logits_PNK)


@every
def test_says_in_one_line_what_it_is(axes, function):
    line = function.__doc__.partition("\n")[0]
    assert 15 < len(line) < 120
    assert line.endswith((".", ")"))


@every
def test_shape_and_type(axes, function, data):
    logits, labels = data
    result = call(axes, function, logits.float(), labels)
    assert result.shape == {"NK": (), "PNK": (P, P), "MNK": (N,)}[axes]
    assert result.dtype == torch.float64
    assert result.isfinite().all()


@every
def test_leaves_its_arguments_alone(axes, function, data):
    logits, labels = data
    before = logits.clone(), labels.clone()
    first, second = (call(axes, function, logits.requires_grad_(), labels) for _ in range(2))
    assert torch.equal(first, second)
    assert not first.requires_grad
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
def test_the_names_of_the_classes_do_not_matter(axes, function, data):
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
def test_is_finite_for_degenerate_networks(axes, function, case, data):
    logits, labels = data
    right = 20 * torch.nn.functional.one_hot(labels, K).double().expand(P, N, K)
    logits = {"right": right, "wrong": -right, "constant": 0 * right, "huge": 1e30 * logits, "one sample": logits}[case]
    if case == "one sample":
        logits, labels = logits[:, :1], labels[:1]
    assert call(axes, function, logits, labels).isfinite().all()


@every
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_logits_that_are_not_finite_are_refused(axes, function, value, data):
    logits, labels = data
    logits[0, 3, 2] = value
    with pytest.raises(UserError, match=f"logits_{axes} holds 1 NaN or infinite values out of"):
        call(axes, function, logits, labels)


@every
def test_wrong_shapes_of_logits_are_refused(axes, function, data):
    logits, labels = data
    flat = logits[0, :, 0] if axes == "NK" else logits[0]
    for bad in (flat, logits[None], logits[..., :1], logits[..., :0, :]):
        with pytest.raises(UserError, match=f"logits_{axes} has shape"):
            function(bad) if axes == "MNK" else function(bad, labels)


@every_with_labels
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda labels: labels[:-1], "labels_N has shape"),
        (lambda labels: labels[:, None], "labels_N has shape"),
        (lambda labels: labels.double(), "labels_N is of type torch.float64"),
        (lambda labels: labels.bool(), "labels_N is of type torch.bool"),
        (lambda labels: labels + (labels == K - 1), f"labels_N holds {K}, but the logits have {K} classes"),
        (lambda labels: labels - 1, "labels_N holds -1"),
        (lambda labels: labels.to("meta"), "labels_N is on meta"),
    ],
)
def test_bad_labels_are_refused(axes, function, change, message, data):
    logits, labels = data
    with pytest.raises(UserError, match=message):
        call(axes, function, logits, change(labels))


@every_with_labels
def test_labels_of_any_integer_type_will_do(axes, function, data):
    logits, labels = data
    assert torch.equal(call(axes, function, logits, labels.to(torch.uint8)), call(axes, function, logits, labels))
