"""Every family: counts, initial weights, mixing block, cost, errors."""

import numpy as np
import pytest
import torch

import mixmo
from mixmo.models import FAMILIES, create, multiply_adds, parameters, training_bytes
from mixmo.utils.errors import UserError

# An excerpt of the reference's table, so that the essentials are tested without it: name, members, classes, count.
COUNTS = [
    ("wrn28_2", 1, 100, 1_479_220),
    ("wrn28_10", 1, 100, 36_536_884),
    ("wrn28_10", 2, 100, 36_601_416),
    ("preactresnet18_1", 1, 200, 11_268_616),
    ("preactresnet18_3", 2, 200, 100_846_992),
]
SMALL = {"wrn": ("wrn10_1", 8), "preactresnet": ("preactresnet18_1", 16), "resnet": ("resnet18_1", 32)}


@pytest.mark.parametrize(("name", "members", "classes", "count"), COUNTS)
def test_parameter_counts_are_the_published_ones(name: str, members: int, classes: int, count: int) -> None:
    with torch.device("meta"):
        assert parameters(create(name, classes, members)) == count


def test_parameter_counts_equal_the_reference(reference: dict[str, np.ndarray]) -> None:
    for depth, width, members, classes, count in reference["params/depth_width_M_classes_count"].tolist():
        family = "wrn" if depth == 28 else "preactresnet"
        with torch.device("meta"):
            assert parameters(create(f"{family}{depth}_{width}", classes, members)) == count


def test_resnet18_equals_torchvision() -> None:
    """The same weights, in the same order, give the same logits."""
    torchvision = pytest.importorskip("torchvision")
    torch.manual_seed(0)
    theirs, ours = torchvision.models.resnet18(num_classes=7).eval(), create("resnet18_1", 7, members=1).eval()
    ours.load_state_dict(dict(zip(ours.state_dict(), theirs.state_dict().values(), strict=True)))
    images = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(ours(images), theirs(images), atol=1e-4, rtol=1e-4)


def test_multiply_adds_equal_the_paper() -> None:
    with torch.device("meta"):
        one, two = (multiply_adds(create("wrn28_10", 100, members), (3, 32, 32)) for members in (1, 2))
    assert f"{one / 1e9:.4f} {two / 1e9:.4f}" == "5.9565 5.9571"


def test_initial_weights_have_the_reference_statistics(reference: dict[str, np.ndarray]) -> None:
    """Truncated at two standard deviations, the standard deviation kept."""
    torch.manual_seed(0)
    net = create("wrn28_4", 100, 2)
    sizes = sorted(
        (p[0].numel(), p.numel(), p.std().item(), p.abs().max().item()) for p in net.parameters() if p.dim() > 1
    )
    known = sorted(reference["init/wrn28_4_fanin_mean_std_absmax"].tolist())
    assert len(sizes) == len(known)
    for (fan_in, count, std, largest), (known_fan_in, _, known_std, _) in zip(sizes, known, strict=True):
        assert fan_in == known_fan_in
        assert std == pytest.approx((2 / fan_in) ** 0.5, rel=4 / count**0.5)
        assert known_std == pytest.approx((2 / fan_in) ** 0.5, rel=4 / count**0.5)
        assert largest <= 2 * (2 / fan_in) ** 0.5 / 0.8796 * 1.0001  # the reference lets one in 4 million past it


def test_preact_head_starts_small(reference: dict[str, np.ndarray]) -> None:
    torch.manual_seed(0)
    std = create("preactresnet18_1", 200, 2).heads[0].weight.std().item()
    assert std == pytest.approx(float(reference["init/preact18_fc_std"]), rel=0.02)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("members", [1, 2, 3])
def test_every_family_trains_and_predicts(family: str, members: int) -> None:
    """Forward of a Mix and of images, gradients everywhere, the declared stride, shared parts."""
    name, size = SMALL[family]
    net = create(name, classes=5, members=members)
    images = torch.randn(4, 3, size, size)
    assert net.encoders[0](images).shape[-1] == -(-size // net.stride)
    mix = mixmo.Mixer("cut", members=members, stride=net.stride)(images, torch.tensor([0, 1, 2, 3]))
    logits = net(mix)
    assert logits.shape == (members, 4, 5)
    mixmo.loss(logits, mix).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())
    net.eval()
    assert torch.allclose(net(images), net.each(images).mean(0))


def test_equal_ratios_give_the_sum_of_test_time(digits: mixmo.Dataset) -> None:
    """The factor M of the mixing block: kappa = 1/M gives the features of the plain sum."""
    net = create("wrn10_1", 10, members=3).eval()
    images = torch.randn(3, 4, 3, 8, 8)
    even = torch.full((3, 4, 1, 1, 1), 1 / 3)
    torch.testing.assert_close(net.read(images, even), net.read(images))


def test_members_read_their_own_image() -> None:
    """Each encoder sees one image: changing the other's changes nothing where it is masked out."""
    net = create("wrn10_1", 10, members=2).eval()
    images = torch.randn(2, 4, 3, 8, 8)
    only_first = torch.stack((torch.ones(4, 1, 8, 8), torch.zeros(4, 1, 8, 8)))
    other = torch.stack((images[0], torch.randn_like(images[1])))
    torch.testing.assert_close(net.read(images, only_first), net.read(other, only_first))
    assert not torch.allclose(net.read(images), net.read(other))


def test_masks_of_another_resolution_are_resized_and_stay_binary() -> None:
    net = create("preactresnet18_1", 10, members=2).eval()
    images = torch.randn(2, 3, 3, 16, 16)
    fine = torch.zeros(2, 3, 1, 16, 16)
    fine[0, ..., :8], fine[1, ..., 8:] = 1, 1
    coarse = fine[..., ::2, ::2]
    torch.testing.assert_close(net.read(images, fine), net.read(images, coarse))


def test_encoder_and_head_can_be_shared() -> None:
    net = create("wrn10_1", 10, members=2, encoders=1, heads=1)
    assert len(net.encoders) == len(net.heads) == 1
    assert net(torch.randn(2, 3, 8, 8)).shape == (2, 10)


def test_concatenation_widens_the_core() -> None:
    net = create("wrn10_1", 10, members=2, concat=True).eval()
    assert net.core.stages[0][0].conv1.in_channels == 32
    images = torch.randn(2, 3, 3, 8, 8)
    features = torch.cat([net.encoders[m](images[m]) for m in (0, 1)], 1)
    torch.testing.assert_close(net.read(images)[0], net.heads[0](net.core(features)))


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("wrn28", "wrn28_10"),
        ("wnr28_10", "'wrn'"),
        ("wrn27_10", "depth"),
        ("preactresnet34_1", "depth"),
        ("resnet50_1", "depth"),
        ("wrn28_0", "width"),
    ],
)
def test_unknown_names_raise(name: str, word: str) -> None:
    with pytest.raises(UserError, match=word):
        create(name, 10)


@pytest.mark.parametrize("wrong", [{"classes": 0}, {"members": 0}, {"members": "2"}, {"channels": 0}, {"encoders": 3}])
def test_counts_out_of_range_raise(wrong: dict[str, int]) -> None:
    with pytest.raises(UserError, match=next(iter(wrong))):
        create("wrn10_1", **{"classes": 10} | wrong)


def test_inputs_that_are_no_batch_raise() -> None:
    net, images, labels = create("wrn10_1", 5), torch.zeros(4, 3, 8, 8), torch.arange(4)
    pixels = mixmo.Mixer()(images.byte(), labels)
    for wrong in (None, images[0], images.byte(), pixels):
        with pytest.raises(UserError, match="images"):
            net(wrong)
    with pytest.raises(UserError, match="members=2"):
        net(mixmo.Mixer(members=3)(images, labels))


@pytest.mark.parametrize("name", ["wrn10_1", "preactresnet18_1"])
def test_training_bytes_is_a_lower_bound(name: str):
    """What autograd keeps in a step, and weights three times, are no less than the bound, and not five times it."""
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    net = create(name, classes=10)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        logits = net(torch.randn(4, 3, 32, 32))
    assert logits.requires_grad
    needed = sum(kept.values()) + 2 * 4 * parameters(net)  # the weights are kept already
    bound, half = (training_bytes(net, (3, 32, 32), 4, precision) for precision in ("fp32", "bf16"))
    assert bound <= needed < 5 * bound
    assert bound - half == half - 12 * parameters(net) > 0
