"""Parameter groups, AdamW, gradient clipping and accumulation, loss scaling."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mixmo
from mixmo import Dataset
from mixmo.engine import Runtime, train
from mixmo.engine.batch import Batches, Now
from mixmo.engine.initialization import fresh_network
from mixmo.engine.optimizer import LossScaler, blocks, layer_depths, make_optimizer, parameter_groups
from mixmo.engine.step import Step, class_weights
from mixmo.recipes import Recipe, named
from mixmo.storage.weights import load_tensors
from mixmo.surgery.backbones import wrap_backbone
from mixmo.utils.rng import Stream

LIBRARIES = ("torchvision", "timm")
TINY = named("digits/cut-mixmo").replace(width=1, batch_size=64, ghost=16)
RUNTIME = Runtime(device="cpu", quiet=True)


def one_step(recipe: Recipe, digits: Dataset) -> tuple[dict[str, Tensor], Tensor]:
    """Weights after one step from fresh ones, and its loss and accuracy."""
    net = fresh_network(recipe, digits)
    batches = Batches(recipe, digits, digits.train, net=net)
    step = Step(net, make_optimizer(net, recipe), batches, compiled=False, graphed=False)
    draws = batches.draw(torch.arange(recipe.batch_size // recipe.repetition), Stream(0, step.device).at("step", 0))
    step(draws, 0.1, 1.0)
    return {name: p.detach().clone() for name, p in net.named_parameters()}, step.meter


def test_the_published_recipe_has_one_group(digits: Dataset) -> None:
    (group,) = parameter_groups(fresh_network(TINY, digits), TINY)
    assert (group["lr_scale"], group["weight_decay"]) == (1.0, TINY.weight_decay)


def test_norms_and_biases_are_not_decayed(digits: Dataset) -> None:
    recipe = TINY.replace(decay_norms=False, weight_decay=0.05)
    for group in parameter_groups(fresh_network(recipe, digits), recipe):
        assert group["weight_decay"] == (0.05 if group["params"][0].ndim > 1 else 0.0)
        assert len({p.ndim > 1 for p in group["params"]}) == 1


def test_layers_of_a_family(digits: Dataset) -> None:
    """WRN-10 has three blocks; encoders are below them and heads above."""
    net = fresh_network(TINY, digits)
    depths = layer_depths(net)
    assert {depths[name] for name in depths if name.startswith("encoders")} == {0}
    assert {depths[name] for name in depths if name.startswith("heads")} == {4}
    assert {depths[f"core.stages.{k}.0.conv1.weight"] for k in range(3)} == {1, 2, 3}
    recipe = TINY.replace(layer_decay=0.5, head_lr=3.0)
    scales = {id(p): group["lr_scale"] for group in parameter_groups(net, recipe) for p in group["params"]}
    assert scales[id(net.heads[0].weight)] == 3.0
    assert scales[id(net.core.stages[2][0].conv1.weight)] == 0.5
    assert scales[id(net.encoders[0].weight)] == 3.0
    single = named("digits/vanilla").replace(width=1, layer_decay=0.5, head_lr=3.0)
    plain = fresh_network(single, digits)
    scales = {id(p): group["lr_scale"] for group in parameter_groups(plain, single) for p in group["params"]}
    assert scales[id(plain.encoders[0].weight)] == 0.5**4


@pytest.mark.parametrize("name", ["test_resnet", "test_convnext", "test_vit", "test_efficientnet", "test_vit_relpos"])
def test_groups_of_a_backbone_are_timms(name: str) -> None:
    """Factors of the learning rate and weight decay as timm's own optimisers give them to the model."""
    timm = pytest.importorskip("timm")
    from timm.optim import param_groups_layer_decay

    net, model = wrap_backbone(f"timm/{name}", 10, (3, 64, 64), members=1), timm.create_model(name, num_classes=10)
    recipe = named("finetune/vanilla").replace(layer_decay=0.7)
    undecayed = model.no_weight_decay() if hasattr(model, "no_weight_decay") else ()
    theirs = param_groups_layer_decay(model, 0.05, no_weight_decay_list=undecayed, layer_decay=0.7)

    def by_name(net: nn.Module, groups: list[dict[str, Any]]) -> dict[str, tuple[float, float]]:
        names = {id(p): n.removeprefix("backbone.").replace(".copies.0.", ".") for n, p in net.named_parameters()}
        return {names[id(p)]: (g["lr_scale"], g["weight_decay"]) for g in groups for p in g["params"]}

    assert by_name(net, parameter_groups(net, recipe)) == by_name(model, theirs)


def test_depths_without_timm_are_those_it_gives() -> None:
    """torchvision's resnet18 has the names of timm's, and nothing that tells its blocks."""
    pytest.importorskip("timm")
    ours, theirs = (layer_depths(wrap_backbone(f"{by}/resnet18", 10, (3, 64, 64), members=2)) for by in LIBRARIES)
    assert ours == theirs


def test_blocks_are_residual_or_transformer_blocks() -> None:
    """Of containers, of stages that hold blocks, and not the layers within a block."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))

    class Stage(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down = nn.Linear(2, 2)
            self.blocks = nn.Sequential(Block(), Block())

    net = nn.Sequential(nn.Linear(2, 2), nn.Sequential(Stage(), Stage()), nn.LayerNorm(2))
    found = list(blocks(net))
    assert [name for name, is_block in found if is_block] == [
        "1.0.blocks.0",
        "1.0.blocks.1",
        "1.1.blocks.0",
        "1.1.blocks.1",
    ]
    assert [name for name, is_block in found if not is_block] == ["0", "1.0.down", "1.1.down", "2"]


def test_groups_learn_at_their_own_rate(digits: Dataset) -> None:
    """Without momentum, a factor of the learning rate is a factor of the change."""
    plain = TINY.replace(momentum=0.0, weight_decay=0.0)
    start = {name: p.detach() for name, p in fresh_network(plain, digits).named_parameters()}
    one, three = (one_step(plain.replace(head_lr=rate), digits)[0] for rate in (1.0, 3.0))
    for name, before in start.items():
        factor = 3.0 if name.startswith(("encoders", "heads")) else 1.0
        torch.testing.assert_close(three[name] - before, factor * (one[name] - before), rtol=1e-3, atol=1e-6)


def test_adamw_is_torchs_own(digits: Dataset) -> None:
    recipe = TINY.replace(optimizer="adamw", momentum=0.8, beta2=0.95, weight_decay=0.1)
    net, twin = fresh_network(recipe, digits), fresh_network(recipe, digits)
    ours = make_optimizer(net, recipe)
    theirs = torch.optim.AdamW(twin.parameters(), lr=recipe.rate, betas=(0.8, 0.95), weight_decay=0.1)
    for step in range(3):
        for one, other in zip(net.parameters(), twin.parameters(), strict=True):
            one.grad = torch.full_like(one, 0.1 * (step + 1))
            other.grad = one.grad.clone()
        ours.step()
        theirs.step()
    for one, other in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_accumulated_gradients_are_those_of_the_batch(digits: Dataset) -> None:
    """In ghost batches every part is normalised as it is in the whole batch."""
    whole, accumulated = (one_step(TINY.replace(grad_accum_steps=parts), digits) for parts in (1, 4))
    torch.testing.assert_close(whole[1], accumulated[1])
    for name, weights in whole[0].items():
        torch.testing.assert_close(accumulated[0][name], weights, rtol=1e-4, atol=1e-6)


def test_accumulation_is_exact_without_batch_statistics(digits: Dataset) -> None:
    """A ViT, in four parts: the step of the whole batch."""
    recipe = named("finetune/cut-mixmo").replace(
        model="timm/test_vit", dataset="digits", size=32, pretrained=False, optimizer="sgd", precision="fp32"
    )
    whole, accumulated = (one_step(recipe.replace(grad_accum_steps=parts), digits) for parts in (1, 4))
    torch.testing.assert_close(whole[1], accumulated[1])
    for name, weights in whole[0].items():
        torch.testing.assert_close(accumulated[0][name], weights, rtol=1e-4, atol=1e-5)


def test_smoothing_and_class_weights_are_torchs(digits: Dataset) -> None:
    """The loss of a plain network is `torch.nn.functional.cross_entropy` with these arguments."""
    recipe = named("digits/vanilla").replace(width=1, label_smoothing=0.2, balance="loss")
    _, meter = one_step(recipe, digits)
    net, batches = fresh_network(recipe, digits), Batches(recipe, digits, digits.train)
    mix = batches.mix(batches.draw(torch.arange(64), Stream(0, torch.device("cpu")).at("step", 0)), Now.at(1.0))
    logits, labels, weights = net(mix)[0], mix.targets[0], class_weights(batches)
    expected = nn.functional.cross_entropy(logits, labels, weights, label_smoothing=0.2, reduction="sum") / len(labels)
    assert meter[0].item() == pytest.approx(expected.item(), rel=1e-5)


def test_clipping_bounds_the_change(digits: Dataset) -> None:
    recipe = TINY.replace(momentum=0.0, weight_decay=0.0, clip_grad=0.01)
    start = fresh_network(recipe, digits)
    after, _ = one_step(recipe, digits)
    change = torch.cat([(after[name] - p).detach().flatten() for name, p in start.named_parameters()]).norm()
    assert change.item() == pytest.approx(0.1 * 0.01, rel=1e-3)  # learning rate times norm


def test_loss_scaling_skips_overflows_and_adapts() -> None:
    """As torch.amp.GradScaler: half the scale and no step after an overflow, twice after 2,000 good steps."""
    weight = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1, fused=True)
    scaler = LossScaler(optimizer, torch.device("cpu"))
    reference = torch.amp.GradScaler("cpu")
    for step in range(2100):
        weight.grad = torch.full_like(weight, torch.inf if step in (5, 6) else 1.0) * scaler.scale
        before = weight.detach().clone()
        scaler.unscale([weight.grad])
        optimizer.step()
        scaler.update()
        assert torch.equal(weight, before if step in (5, 6) else before - 0.1)
        twin = nn.Parameter(torch.ones(3))
        reference.scale(twin.sum()).backward()
        if step in (5, 6):
            twin.grad = torch.full_like(twin, torch.inf)
        plain = torch.optim.SGD([twin], lr=0.1)
        reference.step(plain)
        reference.update()
        assert scaler.scale.item() == reference.get_scale()
    restored = LossScaler(optimizer, torch.device("cpu"))
    restored.load(scaler.state())
    assert restored.state() == scaler.state() == (2.0**15, 2099 - 6 - 2000)


def test_moments_of_adamw_are_resumed(tmp_path: Path) -> None:
    """Stopped and resumed, bit for bit the weights of an uninterrupted training."""
    recipe = TINY.replace(optimizer="adamw", lr=1e-3, epochs=2, batch_size=512, ghost=0, repetition=1)
    train(recipe, tmp_path / "whole", RUNTIME)
    train(recipe, tmp_path / "part", RUNTIME, until=3)
    train(recipe, tmp_path / "part", RUNTIME, resume=True)
    whole, part = (load_tensors(tmp_path / name / "last.safetensors") for name in ("whole", "part"))
    assert all(torch.equal(whole[name], part[name]) for name in whole)


def test_early_stopping_ends_after_patience(tmp_path: Path) -> None:
    """A learning rate of almost zero never improves: the first epoch stays the best."""
    recipe = TINY.replace(epochs=9, batch_size=512, ghost=0, lr=1e-9, validation=0.2, patience=2)
    run = train(recipe, tmp_path / "run", RUNTIME)
    lines = run.read_metrics()
    best = run.read_scores()["best_epoch"]
    assert run.is_finished()
    assert len(lines) == best + 2 < 9
    assert train(recipe, tmp_path / "run", RUNTIME, resume=True).is_finished()


def test_patience_needs_held_out_images() -> None:
    with pytest.raises(mixmo.UserError, match="patience = 2 needs held-out images; give validation"):
        TINY.replace(patience=2)


def test_class_weights_are_inverse_to_frequency(digits: Dataset) -> None:
    rows = torch.cat([(digits.train.labels == label).nonzero()[: 10 * (label + 1), 0] for label in range(10)])
    uneven = digits._replace(train=mixmo.Split(digits.train.resident[rows], digits.train.labels[rows]))
    weights = class_weights(Batches(TINY, uneven, uneven.train))
    assert weights[0] / weights[9] == pytest.approx(10)
    assert weights[uneven.train.labels].mean().item() == pytest.approx(1)


@pytest.mark.parametrize("field", ["head_lr", "layer_decay", "clip_grad", "grad_accum_steps"])
def test_every_setting_changes_the_training(field: str, digits: Dataset) -> None:
    """None of them is read and forgotten."""
    base = TINY.replace(optimizer="adamw", lr=1e-3, ghost=0)
    changed = {"head_lr": 2.0, "layer_decay": 0.5, "clip_grad": 1e-3, "grad_accum_steps": 2}[field]
    recipe = dataclasses.replace(base, **{field: changed})
    (before, _), (after, _) = one_step(base, digits), one_step(recipe, digits)
    assert any(not torch.equal(before[name], after[name]) for name in before)
