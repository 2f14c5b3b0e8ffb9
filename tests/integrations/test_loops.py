"""The plain loop, Accelerate, Lightning and Hugging Face's Trainer take the same steps."""

import copy
import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import mixmo
from mixmo.augment.basic import normalise
from mixmo.data.types import Dataset
from mixmo.integrations.common import Collate, StepMixer
from mixmo.mixing.types import FeatureMixing, Mix
from mixmo.utils.errors import UserError

STEPS, BATCH, SEED = 10, 16, 3
MIXER = mixmo.Mixer("cut", members=2)


@pytest.fixture(scope="module")
def samples(digits: Dataset) -> TensorDataset:
    """Two epochs and a half of five batches each; in order, as each loop would shuffle in its own way."""
    images = normalise(digits.train.images[: 4 * BATCH], digits.mean, digits.std)
    return TensorDataset(images.contiguous(), digits.train.labels[: 4 * BATCH])


def network() -> mixmo.Network:
    torch.manual_seed(0)
    return mixmo.create("wrn10_1", classes=10, members=2, channels=1)


def sgd(parameters: Any) -> torch.optim.SGD:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True)


def batches(samples: TensorDataset) -> Any:
    """Epochs without end."""
    while True:
        yield from DataLoader(samples, BATCH)


@pytest.fixture(scope="module")
def plain(samples: TensorDataset) -> list[float]:
    """The losses of the loop that every other must repeat."""
    net, losses = network().train(), []
    optimizer, mixer = sgd(net.parameters()), StepMixer(MIXER, SEED)
    for step, (images, labels) in zip(range(STEPS), batches(samples), strict=False):
        mix = mixer(images, labels, step, STEPS)
        loss = mixmo.loss(net(mix), mix)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    return losses


def test_lightning_repeats_the_plain_loop(samples: TensorDataset, plain: list[float], tmp_path: Path) -> None:
    from lightning.pytorch import Callback, Trainer

    from mixmo.integrations.lightning import MixMoModule

    losses: list[float] = []

    class Record(Callback):
        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            losses.append(outputs["loss"].item())

    module = MixMoModule(network(), MIXER, sgd, seed=SEED)
    options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = Trainer(
        max_steps=STEPS,
        accelerator="cpu",
        callbacks=[Record()],
        enable_model_summary=False,
        default_root_dir=tmp_path,
        **options,
    )
    loader = DataLoader(samples, BATCH)
    trainer.fit(module, loader, loader)
    assert losses == pytest.approx(plain, rel=1e-6)
    (scores,) = trainer.test(module, loader, verbose=False)
    net, (images, labels) = module.net.eval(), samples.tensors
    assert scores["test_top1"] == pytest.approx((net(images).argmax(1) == labels).float().mean().item(), abs=1e-6)
    predictions = trainer.predict(module, loader)
    found = torch.cat([batch["probs"] for batch in predictions]).float()
    torch.testing.assert_close(found, net(images).softmax(1), atol=1e-5, rtol=0)


def hugging(samples: TensorDataset, folder: Path, net: mixmo.Network, **arguments: Any) -> tuple[Any, list[float]]:
    from transformers import TrainingArguments

    from mixmo.integrations.huggingface import MixMoTrainer

    losses: list[float] = []

    class Recorded(MixMoTrainer):
        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            result = super().compute_loss(*args, **kwargs)
            if isinstance(result, Tensor):
                losses.append(result.item())
            return result

        def _get_train_sampler(self, *args: Any) -> Any:
            return torch.utils.data.SequentialSampler(samples)

    options = TrainingArguments(
        folder,
        max_steps=STEPS,
        per_device_train_batch_size=BATCH,
        seed=SEED,
        max_grad_norm=0.0,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        **arguments,
    )
    optimizer = sgd(net.parameters())
    constant = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    trainer = Recorded(
        net, options, mixer=MIXER, train_dataset=samples, eval_dataset=samples, optimizers=(optimizer, constant)
    )
    trainer.train()
    return trainer, losses


def test_hugging_face_repeats_the_plain_loop(samples: TensorDataset, plain: list[float], tmp_path: Path) -> None:
    net = network()
    trainer, losses = hugging(samples, tmp_path, net)
    assert losses == pytest.approx(plain, rel=1e-6)
    images, labels = samples.tensors
    output = trainer.predict(samples)
    expected = net.eval()(images)
    torch.testing.assert_close(torch.from_numpy(output.predictions), expected, atol=1e-5, rtol=0)
    loss = torch.nn.functional.cross_entropy(expected, labels).item()
    assert output.metrics["test_loss"] == pytest.approx(loss, rel=1e-4)


def test_accumulated_batches_are_mixed_differently(samples: TensorDataset, tmp_path: Path) -> None:
    """The batches of one optimiser step are mixed in different ways; here their images and weights are the same."""
    alike = TensorDataset(*(t[:BATCH].repeat(4, *[1] * (t.dim() - 1)) for t in samples.tensors))
    _, losses = hugging(alike, tmp_path, network(), gradient_accumulation_steps=2)
    assert len(losses) == 2 * STEPS
    assert losses[0] != losses[1]


def test_accelerate_repeats_the_plain_loop(samples: TensorDataset, plain: list[float]) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    net = network()
    net, optimizer, loader = accelerator.prepare(net, sgd(net.parameters()), DataLoader(samples, BATCH))
    losses: list[float] = []
    mixer = StepMixer(MIXER, SEED)
    while len(losses) < STEPS:
        for images, labels in loader:
            mix = mixer(images, labels, len(losses), STEPS, rank=accelerator.process_index)
            loss = mixmo.loss(net(mix), mix)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            losses.append(loss.item())
            if len(losses) == STEPS:
                break
    assert losses == pytest.approx(plain, rel=1e-6)


def test_every_process_has_its_own_draws(samples: TensorDataset) -> None:
    images, labels = (tensor[:BATCH] for tensor in samples.tensors)
    mixer = StepMixer(MIXER, SEED)
    drawn = [mixer(images, labels, step, 10, rank=rank, processes=2) for step in range(2) for rank in range(2)]
    for i, one in enumerate(drawn):
        for other in drawn[:i]:
            assert not torch.equal(one.weights, other.weights)


@pytest.mark.parametrize("workers", [0, 1])
def test_collate_mixes_in_the_data_loader(samples: TensorDataset, workers: int) -> None:
    """Batches made by the data loader, in this process or another, are what the mixer gives for their images."""
    collate = Collate(mixmo.Mixer("cut", members=2, p=1.0))
    torch.manual_seed(1)
    context = "fork" if workers else None
    loader = DataLoader(samples, BATCH, collate_fn=collate, num_workers=workers, multiprocessing_context=context)
    known = {image.numpy().tobytes(): label for image, label in samples}
    seen = list(loader)
    assert [type(mix) for mix in seen] == [Mix] * 4
    for mix in seen:
        assert mix.images.shape == (2, BATCH, 1, 8, 8)
        for m in range(2):
            for image, target in zip(mix.images[m], mix.targets[m], strict=True):
                assert known[image.numpy().tobytes()] == target
    masked = [len(mix.coefficients.unique()) == 2 for mix in seen]
    assert all(masked)
    collate.progress = 1.0  # no masks any more
    assert all(mix.coefficients[:, :, 0].std((2, 3)).max() < 1e-6 for mix in loader)


def test_all_tensors_of_a_mix_move_to_a_device(samples: TensorDataset) -> None:
    mix = Collate(mixmo.Mixer("cut"))([samples[n] for n in range(4)])
    mixing = FeatureMixing(torch.arange(4), (torch.rand(4, 1, 1, 1), torch.rand(4, 1, 1, 1)))
    for whole in (mix, mix._replace(feature_mixing=mixing)):
        moved = whole.to("meta")
        tensors = [*moved[:4], *((moved[4].partner, *moved[4].shares) if moved[4] else ())]
        assert isinstance(moved, Mix)
        assert len(tensors) == (4 if whole is mix else 7)
        assert all(tensor.is_meta for tensor in tensors)
    back = mix.to("cpu")
    assert all(torch.equal(one, other) for one, other in zip(back[:4], mix[:4], strict=True))


def test_a_mix_moves_to_an_accelerator_without_blocking(
    samples: TensorDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Lightning moves tensors; back to the CPU it blocks."""
    from lightning.fabric.utilities.apply_func import move_data_to_device

    mix, to, ahead = Collate(mixmo.Mixer("cut"))([samples[n] for n in range(4)]), torch.Tensor.to, list[bool]()

    def spied(self: torch.Tensor, *where: Any, non_blocking: bool = False) -> torch.Tensor:
        ahead.append(non_blocking)
        return to(self, *where)

    monkeypatch.setattr(torch.Tensor, "to", spied)
    for where in ("meta", "cpu"):
        assert isinstance(move_data_to_device(mix, torch.device(where)), Mix)
    mix.to("meta", non_blocking=False)
    assert ahead == [True] * 4 + [False] * 8


def test_fully_sharded_networks_train_and_predict_the_same(samples: TensorDataset) -> None:
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    images, labels = samples[:8]
    net, mix = network().eval(), mixmo.Mixer("cut")(images, labels)
    expected = mixmo.loss(net(mix), mix).item(), mixmo.predict(net, images).probs
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        fully_shard(net, mesh=torch.distributed.init_device_mesh("cpu", (1,)))
        register_fsdp_forward_method(net, "each")
        torch.testing.assert_close(mixmo.predict(net, images).probs, expected[1])
        assert mixmo.loss(net(mix), mix).item() == pytest.approx(expected[0])
    finally:
        torch.distributed.destroy_process_group()


def test_a_mixer_of_other_members_raises() -> None:
    from mixmo.integrations.lightning import MixMoModule

    with pytest.raises(UserError, match="members=2"):
        MixMoModule(network(), mixmo.Mixer(members=3), sgd)


def test_criterion_is_the_loss_of_a_mix_and_cross_entropy_of_labels(samples: TensorDataset) -> None:
    images, labels = (tensor[:BATCH] for tensor in samples.tensors)
    net, criterion = network(), mixmo.MixMoLoss()
    mix = MIXER(images, labels)
    logits = net(mix)
    assert torch.equal(criterion(logits, mix), mixmo.loss(logits, mix))
    ensemble = copy.deepcopy(net).eval()(images)
    own = ensemble.log_softmax(1)[torch.arange(BATCH), labels]
    torch.testing.assert_close(criterion(ensemble, labels), -own.mean())


def test_a_plain_model_or_no_mixer_raises() -> None:
    from mixmo.integrations.lightning import MixMoModule

    with pytest.raises(UserError, match="Linear"):
        MixMoModule(torch.nn.Linear(2, 2), MIXER, sgd)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="mixer is 'cut'"):
        MixMoModule(network(), "cut", sgd)  # type: ignore[arg-type]


def test_a_missing_package_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking(name: str) -> Any:
        raise AttributeError if name.startswith("__") else ModuleNotFoundError(f"Could not import module '{name}'")

    broken = ModuleType("transformers")
    monkeypatch.setattr(broken, "__getattr__", lacking, raising=False)
    monkeypatch.setitem(sys.modules, "transformers", broken)
    monkeypatch.delitem(sys.modules, "mixmo.integrations.huggingface", raising=False)
    with pytest.raises(UserError, match="transformers"):
        importlib.import_module("mixmo.integrations.huggingface")


def test_lightning_keeps_progress_0_on_a_stream_of_unknown_length(
    samples: TensorDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lightning.pytorch import Trainer

    from mixmo.integrations.lightning import MixMoModule

    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter(samples)

    seen: list[float] = []
    call = mixmo.Mixer.__call__

    def record(mixer: mixmo.Mixer, images: Tensor, labels: Tensor, progress: float, generator: Any) -> Mix:
        seen.append(progress)
        return call(mixer, images, labels, progress, generator)

    monkeypatch.setattr(mixmo.Mixer, "__call__", record)
    options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "accelerator": "cpu"}
    trainer = Trainer(max_epochs=2, enable_model_summary=False, **options)
    trainer.fit(MixMoModule(network(), MIXER, sgd), DataLoader(Stream(), BATCH))
    assert seen == [0.0] * 8


def test_batches_without_tensors_raise() -> None:
    with pytest.raises(UserError, match="str"):
        StepMixer(MIXER)("pixel_values", "label", 0, 5)  # type: ignore[arg-type]


@pytest.mark.parametrize("option", [{"gradient_checkpointing": True}, {"label_smoothing_factor": 0.1}])
def test_arguments_of_hugging_face_that_do_not_fit_raise(option: dict[str, Any], tmp_path: Path) -> None:
    from transformers import TrainingArguments

    from mixmo.integrations.huggingface import MixMoTrainer

    with pytest.raises(UserError, match=next(iter(option))):
        MixMoTrainer(network(), TrainingArguments(str(tmp_path), report_to=[], **option), mixer=MIXER)


def test_samples_without_labels_raise() -> None:
    from mixmo.integrations.huggingface import collate

    with pytest.raises(UserError, match="labels"):
        collate([{"pixel_values": torch.zeros(1, 8, 8), "target": 1}])
