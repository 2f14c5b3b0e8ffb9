"""Exported files, ONNX and .pt2, agree with PyTorch and with a loop over the formulas."""

import copy
import dataclasses
import json
import re
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import mixmo
from mixmo import data
from mixmo.augment.basic import normalise, to_shape
from mixmo.calibration.posthoc import Calibration
from mixmo.cli.app import main
from mixmo.cli.export import temperature_line
from mixmo.engine import Runtime, train
from mixmo.exporters import pt2
from mixmo.exporters.export import export
from mixmo.exporters.graph import Deployed
from mixmo.models.metadata import About
from mixmo.recipes import named
from mixmo.runs.directory import Run
from mixmo.storage.weights import load_tensors
from mixmo.utils.errors import UserError

SIZE, CLASSES, TEMPERATURE = (1, 8, 8), tuple("0123456789"), 1.7
STATISTICS = {"mean": (0.3,), "std": (0.4,)}
FORMATS = ("onnx", "pt2")


def network(**changes: Any) -> mixmo.Network:
    """Return a network with statistics and heads unlike the initial ones: zeros and ones hide errors."""
    torch.manual_seed(0)
    net = mixmo.create("wrn10_1", **{"classes": 10, "members": 2, "channels": 1, **changes})
    for name, tensor in net.state_dict().items():
        if "running_mean" in name or name.endswith("bias"):
            tensor.normal_(0, 0.1)
        elif "running_var" in name:
            tensor.uniform_(0.5, 2)
        elif "heads" in name:
            tensor.normal_(0, 1.0)
    return net.eval()


def run_file(path: Path, images: Tensor) -> dict[str, np.ndarray]:
    """Run a file without this package."""
    if path.suffix == ".onnx":
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        return dict(zip(names, session.run(None, {"images": images.numpy()}), strict=True))
    outputs = torch.export.load(path).module()(images)
    return {name: value.numpy() for name, value in outputs.items()}


def metadata(path: Path) -> dict[str, Any]:
    if path.suffix == ".onnx":
        strings = onnxruntime.InferenceSession(path).get_modelmeta().custom_metadata_map
        plain = ("mixmo", "layout", "colour", "preprocessing", "input", "precision")
        return {key: text if key in plain else json.loads(text) for key, text in strings.items()}
    extra = {pt2.EXTRA: ""}
    torch.export.load(path, extra_files=extra)
    return json.loads(extra[pt2.EXTRA])


def by_hand(logits_MNK: np.ndarray, temperature: float) -> dict[str, np.ndarray]:
    """The four outputs, sample by sample, in double precision."""

    def softmax(z: np.ndarray) -> np.ndarray:
        e = np.exp(z - z.max())
        return e / e.sum()

    def entropy(p: np.ndarray) -> float:
        return -sum(x * np.log(x) for x in p if x > 0)

    rows = []
    for n in range(logits_MNK.shape[1]):
        members = [softmax(z / temperature) for z in logits_MNK[:, n].astype(float)]
        probs = softmax(np.mean(logits_MNK[:, n].astype(float), axis=0) / temperature)
        information = entropy(np.mean(members, axis=0)) - np.mean([entropy(p) for p in members])
        rows.append((probs, members, entropy(probs), information))
    names = ("probs", "members", "entropy", "mutual_information")
    return {name: np.array([row[i] for row in rows]) for i, name in enumerate(names)}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One network in both formats."""
    folder = tmp_path_factory.mktemp("exported")
    written = {}
    for suffix in FORMATS:
        path, known = folder / f"net.{suffix}", {"size": SIZE, "classes": CLASSES, **STATISTICS}
        result = export(network().train(), path, temperature=TEMPERATURE, **known)
        assert result.difference <= 1e-4
        assert result.bytes == result.path.stat().st_size
        assert "2 members, folded" in str(result)
        written[suffix] = result.path
    assert sorted(path.name for path in folder.iterdir()) == ["net.onnx", "net.pt2"]  # and nothing else
    return written


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("samples", [1, 2, 7])
def test_outputs_agree_with_the_formulas_for_any_batch_size(files: dict[str, Path], suffix: str, samples: int) -> None:
    net, images = network(), torch.randn(samples, *SIZE, generator=torch.Generator().manual_seed(samples))
    got = run_file(files[suffix], images)
    with torch.no_grad():
        expected = by_hand(net.each(images).numpy(), TEMPERATURE)
    assert list(got) == list(expected)
    for name, values in expected.items():
        assert got[name].shape == values.shape
        np.testing.assert_allclose(got[name], values, atol=1e-5, err_msg=name)
    assert expected["mutual_information"].max() > 0.05  # the members are diverse enough for this test


@pytest.mark.parametrize("suffix", FORMATS)
def test_outputs_are_those_of_predict(files: dict[str, Path], suffix: str) -> None:
    images = torch.randn(4, *SIZE)
    got = run_file(files[suffix], images)
    prediction = mixmo.predict(network(), images, calibration=Calibration(TEMPERATURE))
    np.testing.assert_allclose(got["probs"], prediction.calibrated, atol=1e-5)
    prediction = mixmo.predict(network(), images)
    plain = by_hand(prediction.logits.numpy(), 1.0)
    np.testing.assert_allclose(plain["probs"], prediction.probs, atol=1e-6)
    np.testing.assert_allclose(plain["mutual_information"], prediction.mutual_information, atol=1e-6)


@pytest.mark.parametrize("members", [1, 2, 3])
def test_the_graph_agrees_with_predict(members: int) -> None:
    """Before folding, which rounds differently."""
    net, images = network(members=members), torch.randn(4, *SIZE)
    prediction, outputs = mixmo.predict(net, images), Deployed(net)(images)
    torch.testing.assert_close(outputs["probs"], prediction.probs, rtol=0, atol=1e-6)
    torch.testing.assert_close(outputs["members"].transpose(0, 1), prediction.members, rtol=0, atol=1e-6)
    torch.testing.assert_close(outputs["entropy"], prediction.entropy, rtol=0, atol=1e-6)
    torch.testing.assert_close(outputs["mutual_information"], prediction.mutual_information, rtol=0, atol=1e-6)
    assert (outputs["mutual_information"] >= 0).all()


@pytest.mark.parametrize("suffix", FORMATS)
def test_metadata_describe_input_outputs_and_network(files: dict[str, Path], suffix: str) -> None:
    about = metadata(files[suffix])
    assert tuple(about["classes"]) == CLASSES
    assert (about["mean"], about["std"], about["normalises"]) == ([0.3], [0.4], False)
    assert (about["size"], about["layout"], about["colour"], about["range"]) == ([1, 8, 8], "NCHW", "grey", [0, 1])
    assert (about["temperature"], about["members"], about["folded"], about["precision"]) == (1.7, 2, True, "fp32")
    assert set(about["outputs"]) == {"probs", "members", "entropy", "mutual_information"}
    assert about["mixmo"] == mixmo.__version__


@pytest.mark.parametrize("suffix", FORMATS)
def test_files_hold_no_paths_of_this_machine(files: dict[str, Path], suffix: str) -> None:
    package = str(Path(mixmo.__file__).parent).encode()
    content = files[suffix].read_bytes()
    if suffix == "pt2":
        with zipfile.ZipFile(files[suffix]) as archive:
            content = b"".join(archive.read(name) for name in archive.namelist())
    assert package not in content
    assert b"site-packages" not in content


def test_the_batch_dimension_is_named(files: dict[str, Path]) -> None:
    session = onnxruntime.InferenceSession(files["onnx"])
    assert session.get_inputs()[0].shape == ["batch", 1, 8, 8]
    assert [output.shape for output in session.get_outputs()] == [["batch", 10], ["batch", 2, 10], ["batch"], ["batch"]]


def test_normalise_moves_normalisation_into_the_graph(files: dict[str, Path], tmp_path: Path) -> None:
    path = export(network(), tmp_path / "a.pt2", size=SIZE, normalise=True, temperature=TEMPERATURE, **STATISTICS).path
    pixels = torch.rand(3, *SIZE)
    expected = run_file(files["pt2"], (pixels - 0.3) / 0.4)
    for name, values in run_file(path, pixels).items():
        np.testing.assert_allclose(values, expected[name], atol=1e-5)
    about = metadata(path)
    assert (about["mean"], about["std"], about["normalises"]) == ([0.0], [1.0], True)  # nothing is left to do
    assert "the graph normalises" in about["preprocessing"]


def test_a_network_that_cannot_be_folded_is_exported_unfolded(tmp_path: Path) -> None:
    net, images = network(concat=True), torch.randn(3, *SIZE)
    with pytest.warns(UserWarning, match="concatenated"):
        result = export(net, tmp_path / "net.pt2", size=SIZE)
    assert not metadata(result.path)["folded"]
    assert "not folded" in str(result)
    with torch.no_grad():
        expected = by_hand(net.each(images).numpy(), 1.0)
    np.testing.assert_allclose(run_file(result.path, images)["members"], expected["members"], atol=1e-5)


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_single_network_has_exactly_no_mutual_information(tmp_path: Path, suffix: str) -> None:
    net, images = network(members=1), torch.randn(3, *SIZE)
    got = run_file(export(net, tmp_path / f"net.{suffix}", size=SIZE).path, images)
    np.testing.assert_allclose(got["probs"], net(images).softmax(1).detach(), atol=1e-6)
    np.testing.assert_array_equal(got["probs"], got["members"][:, 0])
    np.testing.assert_array_equal(got["mutual_information"], 0)


def test_arguments_default_to_the_metadata_of_the_network(tmp_path: Path) -> None:
    net = network()
    net.about = About(SIZE, (0.3,), (0.4,), CLASSES, calibration=Calibration(2.5))
    about = metadata(export(mixmo.fold(net), tmp_path / "net.pt2").path)
    assert (about["size"], about["mean"], about["temperature"]) == ([1, 8, 8], [0.3], 2.5)
    assert tuple(about["classes"]) == CLASSES


def test_sets_and_abstention_in_onnxruntime_agree_with_predict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the code of docs/guides/deploy.md."""
    monkeypatch.chdir(tmp_path)
    net = network()  # images of the fit lie on the thresholds, where rounding decides: others are predicted
    held, images = torch.randn(2, 200, *SIZE, generator=torch.Generator().manual_seed(0))
    logits = mixmo.predict(net, held).logits
    calibration = mixmo.calibrate(logits, (logits.mean(0) + 4 * torch.randn(200, 10)).argmax(1), level=0.9, risk=0.1)
    net.about = About(SIZE, (0.3,), (0.4,), CLASSES, calibration=calibration)
    export(net, "model.onnx")
    text = (Path(__file__).resolve().parents[2] / "docs" / "guides" / "deploy.md").read_text()
    (code,) = (block for block in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL) if "abstain" in block)
    names: dict[str, Any] = {"onnxruntime": onnxruntime, "json": json, "images": images.numpy()}
    exec(code, names)
    prediction = mixmo.predict(net, images)
    np.testing.assert_array_equal(names["sets"], prediction.sets)
    np.testing.assert_array_equal(names["abstain"], prediction.abstain)
    assert calibration.temperature != 1
    assert 0 < prediction.abstain.sum() < 200  # neither none nor all
    assert 200 < prediction.sets.sum() < 2000


def test_a_file_can_be_calibrated_on_its_own_outputs(tmp_path: Path) -> None:
    """Log-probabilities of its members are their logits up to a constant per sample."""
    net = network()
    held = torch.randn(100, *SIZE, generator=torch.Generator().manual_seed(0))
    logits = mixmo.predict(net, held).logits
    labels = (logits.mean(0) + 4 * torch.randn(100, 10)).argmax(1)
    path = export(net, tmp_path / "net.pt2", size=SIZE, temperature=1).path
    members = torch.from_numpy(run_file(path, held)["members"])
    got = mixmo.calibrate(members.clamp_min(1e-30).log().transpose(0, 1), labels)
    expected = mixmo.calibrate(logits, labels)
    assert got.temperature == pytest.approx(expected.temperature, rel=1e-2)
    assert got.conformal is not None
    assert expected.conformal is not None
    assert got.conformal.quantile == pytest.approx(expected.conformal.quantile, rel=1e-3)


def test_a_calibration_object_or_one_of_other_classes_raises(tmp_path: Path) -> None:
    net, fitted = network(), mixmo.calibrate(torch.randn(2, 20, 3), torch.arange(20) % 3, risk=None)
    with pytest.raises(UserError, match="calibration images are a Calibration"):
        export(net, tmp_path / "net.onnx", size=SIZE, calibration=fitted)  # type: ignore[arg-type]
    net.about = About(SIZE, (0.3,), (0.4,), calibration=fitted)
    with pytest.raises(UserError, match="3 classes"):
        export(net, tmp_path / "net.onnx")
    assert not list(tmp_path.iterdir())


def test_a_file_that_differs_from_pytorch_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong(pt2.Session):
        def __call__(self, images: Tensor) -> dict[str, Tensor]:
            return {name: values + 2e-4 for name, values in super().__call__(images).items()}

    monkeypatch.setattr(pt2, "Session", Wrong)
    with pytest.raises(UserError, match="differ"):
        export(network(), tmp_path / "net.pt2", size=SIZE)
    assert not list(tmp_path.iterdir())


def test_pt2_files_are_small_and_fast(files: dict[str, Path]) -> None:
    """The graph's text compressed, no images inside, filters channels last, weights side by side, few operations."""
    with zipfile.ZipFile(files["pt2"]) as archive:
        entries = {entry.filename.split("/", 1)[1]: entry for entry in archive.infolist()}
    graph = entries["models/model.json"]
    assert graph.compress_size < graph.file_size / 10
    assert entries["data/sample_inputs/model.pt"].file_size < 2000
    program = torch.export.load(files["pt2"])
    filters = [tensor for tensor in program.state_dict.values() if tensor.dim() == 4 and min(tensor.shape[2:]) > 1]
    assert filters
    assert all(tensor.is_contiguous(memory_format=torch.channels_last) for tensor in filters)
    assert not any("." in name for name in program.state_dict)
    operations = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert operations.count("aten.linear.default") == 1
    assert len(operations) - operations.index("aten.linear.default") - 1 == 13


def test_flattened_weights_give_the_same_outputs() -> None:
    """Also where one is shared, one changes at every call, and the new name of one is the old name of another."""

    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
            self.second[0].weight = self.first.weight
            self.p_first_bias = nn.Parameter(torch.randn(4))
            self.register_buffer("calls", torch.zeros(1))

        def forward(self, x: Tensor) -> Tensor:
            self.calls.add_(1)
            return self.second(self.first(x)) * self.p_first_bias + self.calls

    net, x = Odd().eval(), torch.randn(3, 4)
    program = torch.export.export(copy.deepcopy(net), (x,)).run_decompositions()  # which makes an output of `calls`
    pt2.flatten(program)
    assert set(program.state_dict) >= {"p_first_bias", "p_p_first_bias", "b_second_1_running_mean", "b_calls"}
    module = program.module()
    for _ in range(2):
        assert torch.equal(module(x), net(x))
    assert torch.export.unflatten(program)(x).shape == (3, 4)


def test_existing_files_are_only_replaced_with_overwrite(tmp_path: Path) -> None:
    path = tmp_path / "net.pt2"
    path.write_text("precious")
    (tmp_path / "folder.pt2").mkdir()
    with pytest.raises(UserError, match="exists"):
        export(network(), tmp_path / "folder.pt2", size=SIZE, overwrite=True)
    with pytest.raises(UserError, match="exists"):
        export(network(), path, size=SIZE)
    assert path.read_text() == "precious"
    export(network(), path, size=SIZE, overwrite=True)
    assert metadata(path)["members"] == 2


@pytest.mark.parametrize(
    ("name", "options", "word"),
    [
        ("net.h5", {}, "onnx"),
        ("none/net.pt2", {}, "none"),
        ("net.pt2", {"size": (3, 8, 8)}, r"\(3, 8, 8\)"),
        ("net.pt2", {"size": (1, 8)}, "size"),
        ("net.pt2", {"classes": ["a", "b"]}, "10 classes"),
        ("net.pt2", {"mean": (0.5,)}, "std"),
        ("net.pt2", {"mean": (0.5,) * 3, "std": (1.0,) * 3}, "1 channels"),
        ("net.pt2", {"normalise": True}, "mean"),
        ("net.pt2", {"temperature": 0.0}, "temperature"),
        ("net.pt2", {"precision": "int8"}, "onnxruntime"),
        ("net.pt2", {"precision": "int4"}, "int4"),
        ("net.onnx", {"precision": "int8"}, "calibration="),
        ("net.onnx", {"precision": "int8", "calibration": torch.zeros(4, 3, 8, 8)}, r"\(4, 3, 8, 8\)"),
    ],
)
def test_wrong_arguments_raise_and_write_nothing(name: str, options: dict[str, Any], word: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=word):
        export(network(), tmp_path / name, **{"size": SIZE, **options})
    assert not list(tmp_path.iterdir())


def test_a_full_disk_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pt2, "write_pt2", full)
    with pytest.raises(UserError, match="No space left"):
        export(network(), tmp_path / "net.pt2", size=SIZE)
    assert not list(tmp_path.iterdir())


def test_a_size_that_the_model_does_not_take_raises(tmp_path: Path) -> None:
    class Strict(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            if x.shape[-1] != 16:
                raise ValueError
            return super().forward(x)

    layers = nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5)
    net = mixmo.wrap(Strict(*layers), size=(3, 16, 16))
    with pytest.raises(UserError, match="ValueError"):
        export(net, tmp_path / "net.pt2", size=(3, 8, 8))


def test_a_network_that_cannot_be_traced_raises(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    class Moody(mixmo.Network):
        def each(self, images_NCHW: Tensor) -> Tensor:
            return super().each(images_NCHW) * (2 if images_NCHW.sum() > 0 else 1)

    net = network(concat=True)
    net.__class__ = Moody
    with (
        pytest.warns(UserWarning, match="unfolded"),
        pytest.raises(UserError, match=r"torch.export") as caught,
    ):
        export(net, tmp_path / "net.pt2", size=SIZE)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())
    assert capfd.readouterr() == ("", "")  # the tracer prints its graph


def test_an_operation_that_onnx_lacks_raises(tmp_path: Path) -> None:
    """In one line: torch's own message has headings and colours."""

    class Inverts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4, 5)

        def forward(self, x: Tensor) -> Tensor:
            features = self.conv(x).flatten(2)
            return self.head(torch.linalg.householder_product(features.mT, features.mean(2)).mean(1))

    net = mixmo.wrap(Inverts(), size=(3, 6, 6))
    with pytest.raises(UserError, match="householder") as caught:
        export(net, tmp_path / "net.onnx")
    assert str(caught.value).isprintable()
    assert export(net, tmp_path / "net.pt2").difference <= 1e-4


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_model_that_uses_the_length_of_its_batch_is_exported(tmp_path: Path, suffix: str) -> None:
    """len() is a plain number, which tracing takes for a fixed batch unless it is strict."""

    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.token, self.head = (
                nn.Conv2d(3, 8, 4, 4),
                nn.Parameter(torch.randn(1, 1, 8)),
                nn.Linear(8, 5),
            )

        def forward(self, x: Tensor) -> Tensor:
            tokens = self.embed(x).flatten(2).transpose(1, 2)
            return self.head(torch.cat([self.token.expand(len(x), -1, -1), tokens], 1).mean(1))

    path = tmp_path / f"net.{suffix}"
    net = mixmo.wrap(Tokens(), size=(3, 8, 8)).eval()
    assert export(net, path).difference <= 1e-4
    images = torch.randn(5, 3, 8, 8)
    np.testing.assert_allclose(run_file(path, images)["probs"], net(images).softmax(-1).detach(), atol=1e-5)


def test_parametrised_weights_are_written_by_value(tmp_path: Path) -> None:
    """ONNX lacks what an orthogonal layer computes. The network itself is left unchanged."""
    from torch.nn.utils.parametrizations import orthogonal, weight_norm

    head = orthogonal(nn.Linear(8, 5))
    model = nn.Sequential(weight_norm(nn.Conv2d(3, 8, 3)), nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)
    net = mixmo.wrap(model).eval()
    before = net.each(torch.ones(1, 3, 8, 8))
    with pytest.warns(UserWarning, match="unfolded"):
        result = export(net, tmp_path / "net.onnx")
    assert result.difference <= 1e-4
    assert torch.equal(net.each(torch.ones(1, 3, 8, 8)), before)
    assert len([n for n in net.state_dict() if "parametrizations" in n]) > 0


def test_missing_packages_raise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(UserError, match="onnxscript"):
        export(network(), tmp_path / "net.onnx", size=SIZE)


@pytest.fixture(scope="module")
def held_out(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A small run with images held out."""
    recipe = named("digits/cut-mixmo").replace(epochs=2, depth=10, width=1, batch_size=128, validation=200)
    return train(recipe, tmp_path_factory.mktemp("held") / "run", Runtime(device="cpu", quiet=True))


def test_command_fits_the_temperature_on_held_out_images(
    held_out: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "net.pt2"
    assert main(["export", str(held_out.path), "--to", str(path)]) == 0
    out, err = capsys.readouterr()
    tensors = load_tensors(held_out.path / "logits-last.safetensors")
    temperature = mixmo.load(held_out.path).about.calibration.temperature  # that of `mixmo predict`
    assert temperature != 1
    assert metadata(path)["temperature"] == pytest.approx(temperature)
    assert "200 held-out images" in err
    assert "largest difference from PyTorch" in out
    digits = data.load("digits")
    images = normalise(digits.test.images, digits.mean, digits.std).contiguous()
    probs = run_file(path, images)["probs"]
    expected = (tensors["logits"].mean(0) / temperature).softmax(1)
    np.testing.assert_allclose(probs, expected, atol=1e-5)  # what the run stored


@pytest.mark.parametrize(
    ("temperature", "samples", "caution"),
    [
        (1.3, 200, None),
        (1.3, 20, "these are too few to calibrate; hold out more"),
        (1.0, 20, "all are classified correctly, so that no temperature fits; hold out more"),
        (1.0, 0, None),
    ],
)
def test_a_temperature_of_few_images_or_of_no_error_has_a_caution(
    temperature: float, samples: int, caution: str | None
) -> None:
    line = temperature_line(About(SIZE, **STATISTICS, calibration=Calibration(temperature, samples=samples)))
    assert line.partition("; caution: ")[2].partition(", hold out more")[0] == (caution or "")


def test_command_without_held_out_images_keeps_temperature_1(
    runs: list[Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "net.pt2")
    assert main(["export", str(runs[0].path), "--to", path]) == 0
    assert "temperature 1" in capsys.readouterr().err
    assert main(["export", str(runs[0].path), "--to", path, "--temperature", "1.5"]) == 2
    assert "exists already" in capsys.readouterr().err
    assert main(["export", str(runs[0].path), "--to", path, "--temperature", "1.5", "--force"]) == 0
    assert "temperature" not in capsys.readouterr().err
    assert metadata(Path(path))["temperature"] == 1.5


@pytest.mark.parametrize(("name", "precision"), [("a.onnx", "int8"), ("a.onnx", "bf16"), ("a.pt2", "bf16")])
def test_command_measures_top1_of_a_precision(
    held_out: Run, files: dict[str, Path], name: str, precision: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    assert main(["export", str(held_out.path), "--to", str(path), "--precision", precision, "--normalise"]) == 0
    out = capsys.readouterr().out
    digits = data.load("digits")
    images = (digits.test.images / 255).permute(0, 3, 1, 2).contiguous()
    probs, about = run_file(path, images)["probs"], metadata(path)
    top1 = (probs.argmax(1) == digits.test.labels.numpy()).mean()
    whole = (held_out.read_logits()[0].mean(0) / about["temperature"]).softmax(1).numpy()
    assert 1e-6 < np.abs(probs - whole).mean() < 5e-3
    before = held_out.read_scores()["last"]["ensemble"]["top1"]
    assert f"Top1: {100 * top1:.2f} %; in PyTorch in float32 {100 * before:.2f} % (360 test images)" in out
    assert abs(top1 - before) < 0.05
    assert path.stat().st_size < 0.75 * files[path.suffix[1:]].stat().st_size
    assert about["precision"] == precision


def test_command_resizes_images_for_the_network(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The network reads 16 x 16 pixels in three colours, of the 8 x 8 digits resized to 18 x 18."""
    net, digits = mixmo.create("wrn10_1", classes=10, members=2, channels=3), data.load("digits")
    about = About((3, 16, 16), (0.3,) * 3, (0.4,) * 3, digits.classes, resize=18, dataset="digits")
    folder, path = mixmo.save_pretrained(net, tmp_path / "saved", about=about), tmp_path / "a.onnx"
    assert main(["export", str(folder), "--to", str(path), "--precision", "int8"]) == 0
    images = normalise(to_shape(digits.test.images, 3, 18, 18)[:, 1:17, 1:17], about.mean, about.std).contiguous()
    top1 = (run_file(path, images)["probs"].argmax(1) == digits.test.labels.numpy()).mean()
    assert f"Top1: {100 * top1:.2f} %" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("dataset", "word"),
    [
        ("birds", "birds"),
        (None, "run directory"),
    ],
)
def test_command_for_int8_without_training_images_fails(
    dataset: str | None, word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    about = About(SIZE, (0.3,), (0.4,), CLASSES, dataset=dataset)
    folder = mixmo.save_pretrained(network(), tmp_path / "saved", about=about)
    assert main(["export", str(folder), "--to", str(tmp_path / "a.onnx"), "--precision", "int8"]) == 2
    assert word in capsys.readouterr().err


def test_command_for_a_network_without_metadata_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = mixmo.save_pretrained(network(), tmp_path / "saved")
    assert main(["export", str(folder), "--to", str(tmp_path / "a.pt2")]) == 2
    assert "mixmo.export" in capsys.readouterr().err
    assert not (tmp_path / "a.pt2").exists()


def test_command_does_not_measure_top1_on_other_classes(runs: list[Run], tmp_path: Path, capsys) -> None:
    net = mixmo.load(runs[0].path)
    about = dataclasses.replace(net.about, classes=net.about.classes[::-1])
    mixmo.save_pretrained(net, tmp_path / "net", about=about)
    assert main(["export", str(tmp_path / "net"), "--to", str(tmp_path / "a.pt2"), "--precision", "bf16"]) == 0
    out, err = capsys.readouterr()
    assert "Top1 is not measured" in err
    assert "Top1:" not in out


class Attentive(nn.Module):
    """Attention within two halves of the image: five dimensions, and a bias."""

    def __init__(self, biased: bool) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 24, 4, 4), nn.Linear(8, 3)
        self.bias = nn.Parameter(torch.randn(8, 8)) if biased else None

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        query, key, value = self.stem(images).flatten(2).transpose(1, 2).unflatten(1, (2, 1, -1)).chunk(3, -1)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, self.bias)
        return self.head(mixed.mean((1, 2, 3)))


@pytest.mark.parametrize("biased", [False, True])
def test_attention_of_five_dimensions_is_exported(tmp_path: Path, biased: bool) -> None:
    net = mixmo.wrap(Attentive(biased), members=2, size=(3, 16, 16)).eval()
    assert export(net, tmp_path / "net.onnx", size=(3, 16, 16)).difference < 1e-5
