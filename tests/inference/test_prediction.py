"""mixmo.predict and Prediction against plain computations, for one network and for several."""

import dataclasses
import math
import warnings

import numpy as np
import pytest
import torch
from torch import Tensor

import mixmo
from mixmo.calibration.conformal import CONFORMAL
from mixmo.calibration.posthoc import Calibration, calibrate
from mixmo.inference.prediction import Prediction
from mixmo.inference.preparation import resize_and_crop
from mixmo.metrics.temperature import fit_temperature
from mixmo.models import Ensemble
from mixmo.models.metadata import About
from mixmo.utils.errors import UserError

CIFAR_LIKE = About((3, 8, 8), (0.5, 0.4, 0.3), (0.2, 0.3, 0.4))


def network(members: int = 2, seed: int = 0, classes: int = 5, **given: int) -> Ensemble:
    torch.manual_seed(seed)
    net = mixmo.create("wrn10_1", classes=classes, members=members, **given)
    for module in net.modules():  # so that training and eval mode differ
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(std=0.1)
    return net.eval()


def pixels(samples: int = 7, seed: int = 0) -> Tensor:
    return torch.randn(samples, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def held_out() -> tuple[Tensor, Tensor]:
    """Logits (3, 4000, 6) of overconfident members, and labels."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(6, (4000,), generator=generator)
    own = torch.randn(3, 4000, 6, generator=generator) + torch.randn(4000, 6, generator=generator)
    return 2 * (own + 2 * torch.nn.functional.one_hot(labels, 6)), labels


def test_every_property_agrees_with_loops_over_samples_and_members():
    net, images = network(members=3), pixels()
    prediction = mixmo.predict(net, images)
    logits = net.each(images).detach().double()
    torch.testing.assert_close(prediction.logits.double(), logits)
    assert prediction.members.shape == (3, 7, 5)

    def softmax(row: Tensor) -> list[float]:
        exps = [math.exp(z) for z in row.tolist()]
        return [e / sum(exps) for e in exps]

    def entropy(p: list[float]) -> float:
        return -sum(x * math.log(x) for x in p)

    for n in range(7):
        members = [softmax(logits[m, n]) for m in range(3)]
        mean = logits[:, n].mean(0)
        probs = softmax(mean)
        average = [sum(p[k] for p in members) / 3 for k in range(5)]
        predicted = [p.index(max(p)) for p in members]
        different = sum(a != b for a in predicted for b in predicted) / 6
        assert prediction.probs[n].tolist() == pytest.approx(probs, abs=1e-5)
        assert prediction.members[1, n].tolist() == pytest.approx(members[1], abs=1e-5)
        assert prediction.labels[n] == probs.index(max(probs))
        assert prediction.confidence[n].item() == pytest.approx(max(probs), abs=1e-5)
        assert prediction.entropy[n].item() == pytest.approx(entropy(probs), abs=1e-5)
        spread = entropy(average) - sum(map(entropy, members)) / 3
        assert prediction.mutual_information[n].item() == pytest.approx(spread, abs=1e-5)
        assert prediction.disagreement[n].item() == pytest.approx(different)
        assert prediction.energy[n].item() == pytest.approx(-math.log(sum(map(math.exp, mean.tolist()))), abs=1e-5)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_logits_that_are_not_finite_raise(value):
    logits = torch.zeros(2, 3, 4)
    logits[1, 2, 0] = value
    with pytest.raises(UserError, match="1 of 3 images"):
        mixmo.Prediction(logits)
    assert mixmo.Prediction(logits[:, :2]).entropy.dtype == torch.float32


def test_several_networks_are_one_ensemble():
    nets, images = [network(2, 0), network(3, 1)], pixels()
    together = mixmo.predict(nets, images)
    assert together.logits.shape == (5, 7, 5)
    torch.testing.assert_close(together.logits[:2], mixmo.predict(nets[0], images).logits)
    torch.testing.assert_close(together.logits[2:], mixmo.predict(nets[1], images).logits)
    held = pixels(40, seed=1)
    fitted = calibrate(mixmo.predict(nets, held).logits, torch.arange(40) % 5)
    calibrated = mixmo.predict(nets, images, calibration=fitted)
    mean = together.logits.mean(0)
    torch.testing.assert_close(calibrated.calibrated, (mean / fitted.temperature).softmax(1))
    assert torch.equal(calibrated.sets, 1 - mean.double().softmax(1) <= fitted.conformal.quantile)


def test_networks_of_a_module_list_are_one_ensemble():
    nets = torch.nn.ModuleList([network(), network()])
    assert torch.equal(mixmo.predict(nets, pixels()).logits, mixmo.predict(list(nets), pixels()).logits)


@pytest.mark.parametrize("batch_size", [1, 3, 100, None])
def test_the_batch_size_does_not_change_predictions(batch_size):
    net, images = network(), pixels()
    torch.testing.assert_close(
        mixmo.predict(net, images, batch_size=batch_size).logits, net.each(images), atol=1e-5, rtol=1e-5
    )


def test_the_network_is_left_as_it_was():
    net = network().train()
    net.core.stages[0].eval()  # a part in another mode
    modes = {name: module.training for name, module in net.named_modules()}
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    prediction = mixmo.predict(net, pixels().requires_grad_())
    assert not prediction.logits.requires_grad
    assert {name: module.training for name, module in net.named_modules()} == modes
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
    torch.testing.assert_close(prediction.logits, net.eval().each(pixels()), atol=1e-5, rtol=1e-5)
    with pytest.raises(UserError):
        mixmo.predict(net.train(), torch.randn(2, 4, 8, 8))  # four channels
    assert net.training


def test_arrays_floats_and_uint8_give_the_same_predictions():
    net, images = network(), pixels()
    expected = mixmo.predict(net, images).logits
    assert torch.equal(mixmo.predict(net, images.numpy()).logits, expected)
    torch.testing.assert_close(mixmo.predict(net, images.double().numpy()).logits, expected)
    torch.testing.assert_close(mixmo.predict(net, images.bfloat16()).logits, expected, atol=0.2, rtol=0.1)
    raw = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 3)).astype(np.uint8)
    net.about = CIFAR_LIKE
    mean, std = (np.array(values, dtype=np.float32) for values in (CIFAR_LIKE.mean, CIFAR_LIKE.std))
    ready = torch.from_numpy((raw / np.float32(255) - mean) / std).permute(0, 3, 1, 2)
    expected = mixmo.predict(net, ready).logits
    torch.testing.assert_close(mixmo.predict(net, raw).logits, expected, atol=1e-5, rtol=1e-5)
    channels_first = torch.from_numpy(raw).permute(0, 3, 1, 2)
    torch.testing.assert_close(mixmo.predict(net, channels_first).logits, expected, atol=1e-5, rtol=1e-5)


def test_uint8_images_of_another_size_are_resized_and_cropped():
    net = network()
    net.about = dataclasses.replace(CIFAR_LIKE, resize=10)
    raw = torch.randint(256, (4, 24, 30, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    ready = resize_and_crop(raw, net.about)
    assert ready.shape == (4, 8, 8, 3)
    expected = mixmo.predict(net, ready).logits
    assert torch.equal(mixmo.predict(net, raw).logits, expected)
    assert torch.equal(mixmo.predict(net, raw.permute(0, 3, 1, 2)).logits, expected)
    net.about = About((3, 8, 16), (0.5,) * 3, (0.2,) * 3)
    with pytest.raises(UserError, match="8 x 16"):
        mixmo.predict(net, raw)


def test_float_images_of_another_size_warn():
    net = network()
    net.about = CIFAR_LIKE
    with pytest.warns(UserWarning, match=r"\(16, 16\).*\(8, 8\)") as caught:
        mixmo.predict(net, torch.randn(2, 3, 16, 16))
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mixmo.predict(net, pixels())


@pytest.mark.parametrize(
    ("images", "word"),
    [
        (torch.zeros(3, 8, 8), "shape"),
        (torch.zeros(0, 3, 8, 8), "shape"),
        (torch.zeros(2, 8, 8, 3, dtype=torch.uint8), "uint8"),
        (torch.zeros(2, 3, 8, 8, dtype=torch.int64), "int64"),
        (torch.full((1, 3, 8, 8), torch.nan), "NaN"),
        ([[1.0]], "list"),
        (torch.zeros(2, 1, 8, 8), "1 x 8 x 8"),
        (torch.zeros(2, 8, 8, 3), "8 x 8 x 3"),
    ],
)
def test_images_of_another_shape_or_type_raise(images, word):
    with pytest.raises(UserError, match=word):
        mixmo.predict(network(), images)


def test_wrong_networks_and_arguments_raise():
    with pytest.raises(UserError, match=r"\[4, 5\] classes"):
        mixmo.predict([network(classes=4), network(classes=5)], pixels())
    with pytest.raises(UserError, match="Conv2d"):
        mixmo.predict([network(), torch.nn.Conv2d(3, 8, 3)], pixels())
    with pytest.raises(UserError, match="images_per_pass"):
        mixmo.predict(network(), pixels(), images_per_pass=1.5)
    net = network()
    net.about = CIFAR_LIKE
    with pytest.raises(UserError, match="channels"):
        mixmo.predict(net, torch.zeros(2, 8, 8, 1, dtype=torch.uint8))


def test_several_images_per_pass_agree_with_passes_put_together_by_hand():
    net, images = network(members=3), pixels(6)
    by_three = mixmo.predict(net, images, images_per_pass=3).logits
    assert by_three.shape == (1, 6, 5)
    for i in range(2):  # images i, i + 2, i + 4 share a pass
        own = net.read(images[[i, i + 2, i + 4]][:, None])
        torch.testing.assert_close(by_three[0, [i, i + 2, i + 4]], own[:, 0], atol=1e-5, rtol=1e-5)
    by_two = mixmo.predict(net, images, images_per_pass=2)
    assert by_two.logits.shape == (2, 6, 5)
    for i in range(3):  # members 0 and 2 read image i, member 1 image i + 3
        own = net.read(images[[i, i + 3, i]][:, None])[:, 0]
        torch.testing.assert_close(by_two.logits[:, i], own[[0, 2]], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(by_two.logits[:, i + 3], own[[1, 1]], atol=1e-5, rtol=1e-5)
    assert (by_two.disagreement[3:] == 0).all()


def test_two_images_per_pass_of_four_members_get_two_members_each():
    net, images = network(members=4), pixels(4)
    logits = mixmo.predict(net, images, images_per_pass=2).logits
    assert logits.shape == (2, 4, 5)
    own = net.read(images[[1, 3, 1, 3]][:, None])[:, 0]
    torch.testing.assert_close(logits[:, 1], own[[0, 2]], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(logits[:, 3], own[[1, 3]], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("samples", [1, 5, 7])
def test_passes_that_lack_images_are_filled(samples):
    net = network(members=3)
    logits = mixmo.predict(net, pixels(samples), images_per_pass=3, batch_size=4).logits
    assert logits.shape == (1, samples, 5)
    assert logits.isfinite().all()


def test_the_same_image_for_all_members_is_the_ensemble():
    net, image = network(members=2), pixels(1)
    both = mixmo.predict(net, image.expand(2, -1, -1, -1), images_per_pass=2).logits[0]
    torch.testing.assert_close(both, net.each(image)[:, 0], atol=1e-5, rtol=1e-5)


def test_networks_that_read_one_image_per_pass_raise():
    with pytest.raises(UserError, match="folded"):
        mixmo.predict(mixmo.fold(network()), pixels(), images_per_pass=2)
    for count in (0, 3):
        with pytest.raises(UserError, match="images_per_pass"):
            mixmo.predict(network(), pixels(), images_per_pass=count)
    for what in ("encoder", "head"):
        with pytest.raises(UserError, match=what):
            mixmo.predict(network(**{f"{what}s": 1}), pixels(), images_per_pass=2)


def test_a_folded_network_predicts_as_before():
    net, images = network(members=3), pixels()
    torch.testing.assert_close(
        mixmo.predict(mixmo.fold(net), images).logits, mixmo.predict(net, images).logits, atol=1e-4, rtol=1e-4
    )


def test_a_wrapped_network_predicts():
    own = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(8, 4),
    )
    net = mixmo.wrap(own, members=2, size=(3, 8, 8)).eval()
    assert mixmo.predict(net, pixels()).logits.shape == (2, 7, 4)
    logits = mixmo.predict(net, pixels(4), images_per_pass=2).logits
    torch.testing.assert_close(logits[0, [0, 2]], net.read(pixels(4)[[0, 2]][:, None])[:, 0], atol=1e-5, rtol=1e-5)


def test_calibration_holds_on_other_images(held_out):
    """Fitted on half of them: temperature, coverage and selective risk on the other half."""
    logits, labels = held_out
    fitted = calibrate(logits[:, :2000], labels[:2000], level=0.9, risk=0.1)
    assert fitted.temperature == pytest.approx(fit_temperature(logits[:, :2000].mean(0), labels[:2000]))
    assert (fitted.samples, fitted.conformal.method) == (2000, "lac")
    prediction = Prediction(logits[:, 2000:], fitted)
    truth = labels[2000:]
    torch.testing.assert_close(prediction.calibrated, (logits[:, 2000:].mean(0) / fitted.temperature).softmax(1))
    assert torch.equal(prediction.calibrated.argmax(1), prediction.labels)
    covered = prediction.sets[torch.arange(2000), truth].double().mean().item()
    assert covered == pytest.approx(0.9, abs=0.03)
    given = ~prediction.abstain
    assert 0.2 < given.double().mean() <= 1
    assert (prediction.labels != truth)[given].double().mean() <= 0.1

    def nll(p: Tensor) -> Tensor:
        return -p[torch.arange(2000), truth].log().mean()

    assert nll(prediction.calibrated) < nll(prediction.probs)


@pytest.mark.parametrize("randomised", [False, True])
@pytest.mark.parametrize("method", list(CONFORMAL))
def test_every_conformal_method_has_its_coverage(held_out, method, randomised):
    torch.manual_seed(0)
    logits, labels = held_out
    fitted = calibrate(logits[:, :2000], labels[:2000], level=0.8, method=method, randomised=randomised)
    prediction = Prediction(logits[:, 2000:], fitted)
    assert prediction.sets[torch.arange(2000), labels[2000:]].double().mean().item() == pytest.approx(0.8, abs=0.03)
    assert prediction.sets is prediction.sets  # drawn once
    assert (fitted.conformal.lam > 0) == (method == "raps")
    assert fitted.conformal.randomised == randomised


def test_the_calibration_of_the_network_is_used(held_out):
    net = network(classes=6)
    fitted = calibrate(*held_out)
    net.about = dataclasses.replace(CIFAR_LIKE, calibration=fitted)
    assert mixmo.predict(net, pixels()).calibration is fitted
    other = Calibration(3.0)
    assert mixmo.predict(net, pixels(), calibration=other).calibration is other
    # It was fitted to these members, reading one image: not to others.
    assert mixmo.predict([net, net], pixels()).calibration is None
    assert mixmo.predict(net, pixels(), images_per_pass=2).calibration is None


def test_a_calibration_of_other_classes_raises(held_out):
    fitted = calibrate(*held_out)
    for predicted in (
        lambda: mixmo.predict(network(classes=10), pixels(), calibration=fitted),
        lambda: Prediction(torch.zeros(2, 3, 10), fitted),
    ):
        with pytest.raises(UserError, match="6 classes"):
            predicted()


def test_properties_without_calibration_raise():
    prediction = mixmo.predict(network(), pixels())
    for name in ("calibrated", "sets", "abstain"):
        with pytest.raises(UserError, match="calibrat"):
            getattr(prediction, name)
    some = mixmo.predict(network(), pixels(), calibration=Calibration(2.0))
    with pytest.raises(UserError, match="conformal"):
        _ = some.sets
    with pytest.raises(UserError, match="selective"):
        _ = some.abstain


@pytest.mark.parametrize(
    "error", [RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), torch.OutOfMemoryError("CUDA out")]
)
def test_too_little_memory_raises(error, monkeypatch):
    def fail(*_: object) -> None:
        raise error

    net = mixmo.create("wrn10_1", classes=3)
    monkeypatch.setattr(net, "each", fail)
    with pytest.raises(mixmo.UserError, match="batch_size"):
        mixmo.predict(net, torch.randn(4, 3, 8, 8))
