"""A wrapped classifier starts as the model, mixes as the paper says, and is an ordinary module."""

import copy
import os
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import mixmo
from helpers import Standardised
from mixmo.surgery.layers import Encoders


def pooled(channels: int) -> list[nn.Module]:
    return [nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 5)]


def plain() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), *pooled(8))


def grouped() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 12, 3, padding=1, groups=3), *pooled(12))


class Scaled(nn.Module):
    """Normalises and pads images before its stem, as models with preprocessing inside do."""

    def __init__(self) -> None:
        super().__init__()
        self.shuffle = nn.PixelUnshuffle(2)
        self.stem = nn.Conv2d(12, 8, 3)
        self.rest = nn.Sequential(*pooled(8))

    def forward(self, x: Tensor) -> Tensor:
        assert x.shape[1] == 3
        mean = torch.tensor([0.5, 0.4, 0.3], device=x.device).view(3, 1, 1)
        return self.rest(self.stem(self.shuffle(nn.functional.pad(x - mean, (2, 2)))))


class Patches(nn.Module):
    """A transformer: dense layer on patches, class token, recorded batch size."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(3 * 16, 16)
        self.token = nn.Parameter(torch.randn(1, 1, 16))
        self.place = nn.Parameter(torch.randn(1, 33, 16))
        self.block = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[0]
        patches = x.unfold(2, 4, 4).unfold(3, 4, 4).permute(0, 2, 3, 1, 4, 5).reshape(n, 32, 48)
        tokens = torch.cat([self.token.expand(n, -1, -1), self.embed(patches)], 1)
        return self.head(self.block(tokens + self.place)[:, 0])


class Map(nn.Module):
    """A dense layer on a map of patches, the channels last."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.conv, self.head = nn.Linear(3 * 16, 16), nn.Conv2d(16, 16, 3), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        patches = x.unfold(2, 4, 4).unfold(3, 4, 4).permute(0, 2, 3, 1, 4, 5).flatten(3)
        return self.head(self.conv(self.embed(patches).permute(0, 3, 1, 2)).relu().mean((2, 3)))


class Branches(nn.Module):
    """Two convolutions read the image, and two heads are averaged."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow, self.wide = nn.Conv2d(3, 8, 1), nn.Conv2d(3, 8, 3, padding=1)
        self.one, self.two = nn.Linear(8, 5), nn.Conv2d(8, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        features = (self.narrow(x) + self.wide(x)).relu().mean((2, 3), keepdim=True)
        return (self.one(features.flatten(1)) + self.two(features).flatten(1)) / 2


class Scales(nn.Module):
    """Reads the image and, after a normalisation, the image at half its size."""

    def __init__(self) -> None:
        super().__init__()
        self.fine, self.norm, self.coarse = nn.Conv2d(3, 8, 4, 4), nn.BatchNorm2d(8), nn.Conv2d(3, 8, 2, 2)
        self.rest = nn.Sequential(*pooled(8))

    def forward(self, x: Tensor) -> Tensor:
        return self.rest(self.norm(self.fine(x)) + self.coarse(nn.functional.avg_pool2d(x, 2)))


def standardised() -> nn.Module:
    return nn.Sequential(Standardised(3, 8, 3), *pooled(8))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, int, int] | None]] = {
    "plain": (plain, None),
    "grouped": (grouped, None),
    "scaled": (Scaled, None),
    "patches": (Patches, (3, 16, 32)),
    "map": (Map, (3, 16, 32)),
    "branches": (Branches, None),
    "scales": (Scales, None),
    "standardised": (standardised, None),
}


def make(name: str, members: int = 2, **options: object) -> tuple[nn.Module, mixmo.Wrapped]:
    build, size = MODELS[name]
    torch.manual_seed(0)
    model = build()
    return model, mixmo.wrap(model, members, size=size, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("members", [1, 2, 3])
@pytest.mark.parametrize("name", MODELS)
def test_every_head_predicts_as_the_model_before_training(name: str, members: int) -> None:
    model, net = make(name, members)
    images = torch.randn(4, *net.size)
    model.eval()
    net.eval()
    expected = model(images)
    assert net.each(images).shape == (members, 4, 5)
    torch.testing.assert_close(net.each(images), expected.expand(members, -1, -1), atol=1e-5, rtol=0)
    torch.testing.assert_close(net(images), expected, atol=1e-5, rtol=0)
    together = net.read(images.expand(members, *images.shape))
    torch.testing.assert_close(together, net.each(images), atol=1e-5, rtol=0)
    torch.testing.assert_close(net.backbone(images), torch.cat([*net.each(images)], 1))  # as a hook on it sees it


@pytest.mark.parametrize("kind", ["cut", "linear", "sum", "fmix", "cow"])
@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_has_a_gradient(name: str, kind: str) -> None:
    """Distributed training would stop at a parameter without one."""
    _, net = make(name, 3)
    mix = mixmo.Mixer(kind, members=3, p=1.0, stride=net.stride)(torch.randn(4, *net.size), torch.arange(4))
    logits = net(mix)
    assert logits.shape == (3, 4, 5)
    mixmo.loss(logits, mix).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())


@pytest.mark.parametrize("name", MODELS)
def test_an_image_of_share_zero_has_no_influence(name: str) -> None:
    """The images of all members reach the stem with their own shares, whatever the backbone does before it."""
    _, net = make(name)
    net.eval()
    images = torch.randn(2, 4, *net.size)
    shares = torch.zeros(2, 4, 1, 1, 1)
    for shown in (0, 1):
        shares[shown], shares[1 - shown] = 1, 0
        other = images.clone()
        other[1 - shown] = torch.randn_like(other[0])
        torch.testing.assert_close(net.read(images, shares), net.read(other, shares))
        other[shown] = torch.randn_like(other[0])
        assert not torch.allclose(net.read(images, shares), net.read(other, shares), atol=1e-4)


def test_mixing_block_is_equation_2() -> None:
    """M sum_i mask_i * c_i(x_i), position by position, against a plain loop."""
    _, net = make("plain", 3)
    net.eval()
    images = torch.randn(3, 2, 3, 16, 16)
    shares = torch.rand(3, 2, 1, 8, 8)
    encoders, *rest = net.backbone
    features = torch.zeros(2, 8, 8, 8)
    for m in range(3):
        encoded = encoders.copies[m](images[m])
        for row in range(8):
            for column in range(8):
                features[:, :, row, column] += 3 * shares[m, :, :, row, column] * encoded[:, :, row, column]
    for layer in rest[:-1]:
        features = layer(features)
    expected = torch.stack([head(features) for head in rest[-1].copies])
    torch.testing.assert_close(net.read(images, shares), expected)
    finer = shares.repeat_interleave(2, -1).repeat_interleave(2, -2)
    torch.testing.assert_close(net.read(images, finer), expected)


@pytest.mark.parametrize("name", ["patches", "map"])
def test_tokens_are_mixed_where_their_patches_are(name: str) -> None:
    """On a grid of 4 x 8 patches, a mask gives the logits of images pasted together along it."""
    model, net = make(name, diversity=0.0)
    net.eval()
    images = torch.randn(2, 3, 3, 16, 32)
    region = (torch.rand(3, 1, 4, 8) < 0.5).float()
    pixels = region.repeat_interleave(4, -1).repeat_interleave(4, -2)
    pasted = torch.where(pixels > 0, images[0], images[1])
    for mask in (region, pixels):
        logits = net.read(images, torch.stack([mask, 1 - mask]))
        torch.testing.assert_close(logits[0], model.eval()(pasted), atol=1e-5, rtol=1e-4)
    assert net.stride == 4


def test_tokens_that_do_not_fit_the_mask_raise() -> None:
    _, net = make("patches")
    with pytest.raises(mixmo.UserError, match="32 tokens"):
        net.read(torch.randn(2, 3, 3, 16, 32), torch.rand(2, 3, 1, 5, 5))


def test_stems_heads_and_strides_are_found() -> None:
    found = {name: make(name)[1] for name in MODELS}
    assert {name: (net.stems, net.heads, net.stride) for name, net in found.items()} == {
        "plain": (("0",), ("5",), 2),
        "grouped": (("0",), ("4",), 1),
        "scaled": (("stem",), ("rest.3",), 2),
        "patches": (("embed",), ("head",), 4),
        "map": (("embed",), ("head",), 4),
        "branches": (("narrow", "wide"), ("one", "two"), 1),
        "scales": (("fine", "coarse"), ("rest.3",), 4),
        "standardised": (("0",), ("4",), 1),
    }
    assert found["plain"].direct == (True,)
    assert found["scaled"].direct == (False,)


def test_statistics_count_the_mixed_batch_once() -> None:
    """Preparing the other members' images does not update running statistics."""
    _, net = make("scales", 3)
    mix = mixmo.Mixer("linear", members=3)(torch.randn(4, *net.size), torch.arange(4))
    encoded = [copy(x) for copy, x in zip(net.backbone.fine.copies, mix.images, strict=True)]
    features = 3 * sum(c * f for c, f in zip(mix.coefficients, encoded, strict=True))
    net(mix)
    assert net.backbone.norm.num_batches_tracked == 1
    torch.testing.assert_close(net.backbone.norm.running_mean, 0.1 * features.mean((0, 2, 3)))


@pytest.mark.parametrize("name", ["plain", "standardised", "branches"])
def test_training_makes_members_diverse(name: str) -> None:
    _, net = make(name)
    images, labels = torch.randn(64, *net.size), torch.randint(5, (64,))
    mixer, optimizer = mixmo.Mixer("cut"), torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(5):
        mix = mixer(images, labels)
        optimizer.zero_grad()
        mixmo.loss(net(mix), mix).backward()
        optimizer.step()
    one, two = net.eval().each(images)
    assert (one - two).abs().max() > 1e-3


def test_the_model_is_left_unchanged() -> None:
    model = plain()
    model[1].eval()
    model[1].requires_grad_(False)
    before = copy.deepcopy(model.state_dict())
    net = mixmo.wrap(model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    for norm in (model[1], net.backbone[1]):
        assert not norm.training
        assert not norm.weight.requires_grad
        assert norm.num_batches_tracked == 0
    assert model.training
    assert net.training
    assert net.backbone[0].copies[1].training
    assert net.backbone[0].copies[1].weight.requires_grad


@pytest.mark.parametrize("name", MODELS)
def test_deepcopy_and_state_dict_give_the_same_logits(name: str) -> None:
    _, net = make(name)
    images = torch.randn(2, *net.size)
    net.eval()
    twin = copy.deepcopy(net)
    torch.testing.assert_close(twin(images), net(images))
    torch.manual_seed(1)
    other = mixmo.wrap(MODELS[name][0](), size=net.size, stem=net.stems, head=net.heads).eval()
    assert not torch.allclose(other(images), net(images))
    other.load_state_dict(net.state_dict())
    torch.testing.assert_close(other.each(images), net.each(images))
    assert not any(key.endswith((".others", ".coefficients")) for key in net.state_dict())


@pytest.mark.parametrize("name", ["plain", "scaled", "scales"])
def test_torch_compile_and_export_give_the_same_logits(name: str) -> None:
    """One graph, with the images of the other members and their shares as its inputs."""
    _, net = make(name)
    images = torch.randn(4, *net.size)
    mix = mixmo.Mixer("cut", p=1.0, stride=net.stride)(images, torch.arange(4))
    torch._dynamo.reset()
    compiled = torch.compile(net, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(mix), net(mix))
    net.eval()
    program = torch.export.export(net, (images,), dynamic_shapes={"x": {0: torch.export.Dim("n", min=1)}})
    torch.testing.assert_close(program.module()(images[:3]), net(images[:3]))


def test_distributed_data_parallel_trains(tmp_path: os.PathLike[str]) -> None:
    """DDP rejects unused parameters at the second step, and broadcasts buffers."""
    _, net = make("plain")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        spread = nn.parallel.DistributedDataParallel(net)
        for _ in range(2):
            mix = mixmo.Mixer("cut")(torch.randn(4, *net.size), torch.arange(4))
            mixmo.loss(spread(mix), mix).backward()
    finally:
        dist.destroy_process_group()


def test_autocast_keeps_its_dtype() -> None:
    _, net = make("plain")
    mix = mixmo.Mixer("cut")(torch.randn(4, *net.size), torch.arange(4))
    with torch.autocast("cpu", torch.bfloat16):
        assert net(mix).dtype == torch.bfloat16


def test_a_layer_with_two_names_is_replaced_under_both() -> None:
    class Alias(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Sequential(nn.Conv2d(3, 8, 3))
            self.same = self.first[0]
            self.rest = nn.Sequential(*pooled(8))

        def forward(self, x: Tensor) -> Tensor:
            return self.rest(self.same(x))

    net = mixmo.wrap(Alias())
    assert isinstance(net.backbone.same, Encoders)
    assert net.backbone.same is net.backbone.first[0]


def test_attributes_of_the_replaced_layers_can_be_read() -> None:
    """Backbones read the dtype of their stem and the width of their head."""
    _, net = make("plain")
    assert net.backbone[0].weight.dtype == torch.float32
    assert net.backbone[5].in_features == 8
    with pytest.raises(AttributeError):
        net.backbone[0].nonsense  # noqa: B018


def test_double_precision_is_kept(float64: None) -> None:
    model, net = make("plain")
    images = torch.randn(2, *net.size)
    torch.testing.assert_close(net.eval()(images), model.eval()(images), atol=1e-12, rtol=0)


def test_logits_in_a_dict_are_found() -> None:
    class Named(nn.Sequential):
        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"logits": super().forward(x)}

    model, images = Named(nn.Conv2d(3, 8, 3), *pooled(8)), torch.randn(2, 3, 16, 16)
    torch.testing.assert_close(mixmo.wrap(model)(images), model(images)["logits"])


def test_a_compiled_model_is_wrapped_uncompiled() -> None:
    assert mixmo.wrap(torch.compile(plain(), backend="eager")).heads == ("5",)  # type: ignore[arg-type]


@pytest.mark.parametrize("members", [2, 3])
def test_a_head_that_ends_with_a_normalisation_is_copied_with_it(members: int) -> None:
    """Copies of the normalisation alone would predict alike."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), *pooled(8), nn.BatchNorm1d(5)).eval()
    nn.init.normal_(model[-1].running_mean)
    nn.init.normal_(model[-1].weight)
    images = torch.randn(4, 3, 16, 16)
    net = mixmo.wrap(model, members=members)
    assert net.heads == ("4", "5")
    torch.testing.assert_close(net.each(images), model(images).expand(members, -1, -1), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(mixmo.fold(net).each(images), net.each(images), atol=1e-5, rtol=1e-5)
    more = mixmo.convert(net, members=members + 1)
    torch.testing.assert_close(more(images), model(images), atol=1e-5, rtol=1e-5)
    again = mixmo.wrap(model, members=members, head=net.heads)  # as it is read from a saved folder
    again.load_state_dict(net.state_dict())
    assert torch.equal(again.each(images), net.each(images))
    with torch.no_grad():
        net.backbone[4].copies[1].bias += 1
    others = net.each(images) - model(images)
    assert (others.abs().amax((1, 2)) > 1e-2).tolist() == [m == 1 for m in range(members)]


def test_layers_with_a_weight_norm_are_copied_whole() -> None:
    """A parametrised layer has its own __deepcopy__, which must not become that of the M layers."""
    norm = nn.utils.parametrizations.weight_norm
    head = norm(nn.Linear(8, 5, bias=False))
    net = mixmo.wrap(nn.Sequential(norm(nn.Conv2d(3, 8, 3)), *pooled(8)[:-1], head)).eval()
    assert net.heads == ("4",)
    images = torch.randn(2, 3, 16, 16)
    assert torch.equal(copy.deepcopy(net).each(images), net.each(images))
    with pytest.raises(mixmo.UserError, match="linear"):
        mixmo.fold(net)


@pytest.mark.parametrize("diversity", [0.0, 0.5, 1.0])
def test_members_share_out_the_channels_of_the_stem(diversity: float) -> None:
    """Each channel is weaker by `diversity` in all members but one; their sum and the logits are the model's."""
    model = nn.Sequential(nn.Conv2d(3, 9, 3), *pooled(9)).eval()
    net, images = mixmo.wrap(model, members=3, diversity=diversity).eval(), torch.randn(4, 3, 16, 16)
    stems = [copy_.weight.detach() for copy_ in net.backbone[0].copies]
    torch.testing.assert_close(sum(stems), model[0].weight.detach())
    torch.testing.assert_close(net.each(images), model(images).expand(3, -1, -1), rtol=1e-5, atol=1e-6)
    strengths = [[(3 * stem[c] / model[0].weight[c]).mean().item() for stem in stems] for c in range(9)]
    for strength in strengths:
        assert sorted(strength) == pytest.approx([1 - diversity, 1 - diversity, 1 + 2 * diversity], abs=1e-4)
    if diversity:
        owned = [max(range(3), key=strength.__getitem__) for strength in strengths]
        assert [owned.count(m) for m in range(3)] == [3, 3, 3]


@pytest.mark.parametrize("diversity", [0.0, 1e-2])
def test_whether_a_stem_is_linear_does_not_depend_on_diversity(diversity: float) -> None:
    """Else one of little diversity would be shared out, and averaged when it is read from a saved folder."""
    norm = nn.utils.parametrizations.weight_norm
    model = nn.Sequential(norm(nn.Conv2d(3, 8, 3)), *pooled(8))
    net, again = mixmo.wrap(model, diversity=diversity).eval(), mixmo.wrap(model).eval()
    again.load_state_dict(net.state_dict())
    images = torch.randn(2, 3, 16, 16)
    assert torch.equal(again.each(images), net.each(images))
    plain = mixmo.wrap(nn.Sequential(nn.Conv2d(3, 8, 3), *pooled(8)), diversity=diversity)
    assert (net.backbone[0].linear, plain.backbone[0].linear) == (False, True)


def test_a_network_that_amplifies_rounding_can_be_wrapped_and_folded() -> None:
    """Compared in float64, its members predict as it did; in float32 no two ways to compute it agree."""

    class Steep(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            for _ in range(4):
                x = (40 * x).sin()
            return x

    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), Steep(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)).eval()
    net, images = mixmo.wrap(model, size=(3, 16, 16), diversity=0.3).eval(), torch.randn(2, 3, 16, 16)
    folded = mixmo.fold(net)
    with torch.no_grad():
        expected = model(images)
        for each in (net, folded):
            assert 1e-3 < (each.each(images)[0] - expected).abs().max() / expected.abs().max() < 0.1
        exact = mixmo.wrap(model.double(), size=(3, 16, 16)).each(images.double())
    assert torch.allclose(exact, model(images.double()).expand(2, -1, -1), atol=1e-8)


@pytest.mark.parametrize("name", ["test_vit", "test_convnext", "test_resnet"])
def test_layer_decay_of_timm_works_on_the_backbone(name: str) -> None:
    timm = pytest.importorskip("timm")
    from timm.optim import create_optimizer_v2

    model = timm.create_model(name, num_classes=5)
    groups = [
        {(group["lr"] * group["lr_scale"], group["weight_decay"]) for group in optimizer.param_groups}
        for given in (model, mixmo.wrap(model).backbone)
        for optimizer in [create_optimizer_v2(given, "sgd", lr=0.1, weight_decay=0.05, layer_decay=0.5)]
    ]
    assert groups[0] == groups[1]
    assert len(groups[0]) > 4
    net = mixmo.wrap(model)
    assert {id(p) for p in net.parameters()} == {id(p) for p in net.backbone.parameters()}
