"""Filter norms and activity against the authors' code and against plain loops."""

import re
from zlib import crc32

import numpy as np
import pytest
import torch
from torch import nn

from mixmo import UserError, wrap
from mixmo.evaluation.analysis.filters import activity, core_norms, encoder_norms, separation
from mixmo.evaluation.analysis.summary import channel_separation
from mixmo.models import Network, create


def ours(name: str) -> str:
    """Our name of a layer of theirs."""
    name = re.sub(r"^layer(\d)", lambda match: f"core.stages.{int(match[1]) - 1}", name)
    return name.replace("list_conv1.", "encoders.").replace("list_fc.", "heads.").replace("shortcut.0.", "shortcut.")


@pytest.fixture(scope="module")
def authors(reference: dict[str, np.ndarray]) -> Network:
    """WRN-28-4 with the closed-form weights of the reference."""
    net = create("wrn28_4", classes=100, members=2)
    parameters = dict(net.named_parameters())
    for name in reference["init/wrn28_4_names"].tolist():
        parameter = parameters[ours(name)]
        i = torch.arange(parameter.numel(), dtype=torch.float64)
        wave = torch.cos(0.731 * i + crc32(name.encode()) % 1000).view(parameter.shape)
        parameter.data.copy_((2 / parameter[0].numel()) ** 0.5 * wave)
    return net


def test_encoder_norms_agree_with_the_authors_code(authors: Network, reference: dict[str, np.ndarray]) -> None:
    np.testing.assert_allclose(encoder_norms(authors), reference["filters/encoder_l1_wrn28_4_formula"], rtol=1e-5)


def test_layers_agree_with_the_authors_code(authors: Network, reference: dict[str, np.ndarray]) -> None:
    theirs = [ours(name).removeprefix("core.").removesuffix(".weight") for name in reference["filters/layers_counted"]]
    assert list(core_norms(authors)) == theirs


def test_activity_agrees_with_the_authors_code(authors: Network, reference: dict[str, np.ndarray]) -> None:
    norms = core_norms(authors)
    shares = [activity(norms, threshold).by_layer for threshold in reference["filters/thresholds"]]
    np.testing.assert_allclose(shares, reference["filters/active_wrn28_4_formula"], rtol=1e-6)


@pytest.mark.parametrize("model", ["wrn16_2", "preactresnet18_1", "resnet18_1"])
def test_activity_agrees_with_a_plain_loop(model: str) -> None:
    """Filters of very different sizes, one by one."""
    torch.manual_seed(0)
    net = create(model, classes=10)
    counted: dict[str, list[float]] = {}
    for name, layer in net.core.named_modules():
        if isinstance(layer, torch.nn.Conv2d):
            layer.weight.data *= torch.rand(len(layer.weight), 1, 1, 1)
            if "shortcut" not in name:
                counted[name] = [sum(abs(w) for w in f.flatten().tolist()) for f in layer.weight[:8]]
                layer.weight.data = layer.weight.data[:8]
    assert counted.keys() == core_norms(net).keys()
    for threshold in (0.0, 0.2, 0.4, 0.5, 0.9, 1.0):
        shares = [sum(n >= threshold * max(norms) for n in norms) / len(norms) for norms in counted.values()]
        found = activity(core_norms(net), threshold)
        assert list(found.layers.values()) == pytest.approx(shares)
        assert found.by_layer == pytest.approx(sum(shares) / len(shares))
        assert found.by_filter == pytest.approx(found.by_layer)  # all layers have 8 filters here


def test_wide_layers_count_for_more_by_filter() -> None:
    found = activity({"a": torch.tensor([1.0, 0.3]), "b": torch.tensor([2.0] * 7 + [0.1])}, 0.4)
    assert found.layers == {"a": 0.5, "b": 0.875}
    assert (found.by_layer, found.by_filter) == (pytest.approx(0.6875), pytest.approx(0.8))


def test_threshold_is_inclusive_and_zero_layers_are_dead() -> None:
    assert activity({"a": torch.tensor([1.0, 0.5, 0.25])}, 0.5).by_filter == pytest.approx(2 / 3)
    assert activity({"a": torch.zeros(3)}, 0.2).by_layer == 0


@pytest.mark.parametrize("threshold", [-0.1, 1.5, float("nan")])
def test_a_threshold_outside_0_to_1_raises_an_error(threshold: float) -> None:
    with pytest.raises(UserError, match="threshold"):
        activity({"a": torch.ones(2)}, threshold)


@pytest.mark.parametrize("members", [2, 3, 5])
def test_separation_agrees_with_a_plain_loop(members: int) -> None:
    norms = torch.rand(members, 16, generator=torch.Generator().manual_seed(members)) ** 4
    distances = []
    for i in range(members):
        for j in range(i + 1, members):
            p, q = (norms[m] / norms[m].sum() for m in (i, j))
            distances.append(sum(abs(a - b) for a, b in zip(p.tolist(), q.tolist(), strict=True)) / 2)
    assert separation(norms) == pytest.approx(sum(distances) / len(distances), abs=1e-6)


def test_separation_is_1_for_disjoint_and_0_for_equal_channels() -> None:
    disjoint = torch.block_diag(torch.rand(1, 5), torch.rand(1, 7), torch.rand(1, 4)) + 0.0
    assert separation(disjoint) == pytest.approx(1)
    same = torch.rand(1, 16).expand(3, 16) * torch.tensor([[1.0], [2.0], [30.0]])
    assert separation(same) == pytest.approx(0, abs=1e-6)
    assert separation(torch.tensor([[0.0, 0.0], [1.0, 0.0]])) == 1  # an encoder of zeros shares nothing


def test_separation_of_fresh_and_special_networks() -> None:
    assert channel_separation(create("wrn10_1", classes=10, members=1)) is None
    assert channel_separation(create("wrn10_1", classes=10, members=2, encoders=1)) is None
    assert channel_separation(create("wrn10_1", classes=10, members=2, concat=True)) == 1
    fresh = channel_separation(create("wrn10_1", classes=10, members=2))
    assert fresh is not None
    assert fresh < 0.2


def test_filters_of_a_wrapped_network_are_those_of_its_stems_and_core() -> None:
    body = nn.Sequential(nn.Conv2d(8, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4))
    model = nn.Sequential(nn.Conv2d(3, 8, 3), body, nn.Linear(4, 5))
    net = wrap(model, members=2, diversity=1.0, size=(3, 16, 16))
    assert {name: len(norms) for name, norms in core_norms(net).items()} == {"1.0": 6, "1.4": 4}
    torch.testing.assert_close(core_norms(net)["1.0"], body[0].weight.abs().sum((1, 2, 3)).detach())
    torch.testing.assert_close(encoder_norms(net).sum(0), model[0].weight.abs().sum((1, 2, 3)).detach())
    assert channel_separation(net) == pytest.approx(1)
    assert channel_separation(wrap(model, members=1, size=(3, 16, 16))) is None
    bare = nn.Sequential(model[0], nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))
    with pytest.raises(UserError, match="no filters"):
        core_norms(wrap(bare, size=(3, 16, 16)))
