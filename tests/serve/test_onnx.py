"""An exported file gives the numbers of the network that it was exported from."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import mixmo
from mixmo.models.network import Ensemble
from mixmo.serve.backends import OnnxBackend, TorchBackend
from mixmo.serve.images import Upload, prepare

Draw = Callable[..., bytes]


def test_numbers_are_those_of_pytorch(exported: Path, net: Ensemble, draw_file: Draw) -> None:
    served = OnnxBackend(exported)
    calibration = replace(net.about.calibration, temperature=1.7)
    original = TorchBackend([net], "net", calibration)
    images = prepare([Upload(None, draw_file(seed)) for seed in range(40)], net.about, 10**6)  # more than a batch
    one, two = original.predict(images), served.predict(images)
    assert one.disagreement.max() > 0
    for name in ("probs", "members", "entropy", "mutual_information", "disagreement", "calibrated"):
        assert torch.allclose(getattr(one, name), getattr(two, name), atol=1e-5), name
    assert torch.equal(one.labels, two.labels)
    assert torch.equal(one.sets, two.sets)
    assert torch.equal(one.abstain, two.abstain)


def test_the_file_knows_how_images_are_prepared(exported: Path, net: Ensemble) -> None:
    about = OnnxBackend(exported).about
    assert (about.size, about.resize, about.classes) == ((3, 32, 32), 36, net.about.classes)
    assert about.mean == pytest.approx(net.about.mean)
    assert about.std == pytest.approx(net.about.std)


def test_a_file_that_normalises_itself_gives_the_same(net: Ensemble, tmp_path: Path, draw_file: Draw) -> None:
    mixmo.export(net, tmp_path / "net.onnx", normalise=True)
    images = prepare([Upload(None, draw_file(0))], net.about, 10**6)
    probs = OnnxBackend(tmp_path / "net.onnx").predict(images).probs
    assert torch.allclose(probs, mixmo.predict(net, images).probs, atol=1e-5)


def test_over_http_it_predicts_and_says_why_it_cannot_mix(exported: Path, serve: Any, draw_file: Draw) -> None:
    with serve(OnnxBackend(exported)) as client:
        assert client.post("/predict", files={"files": draw_file(0)}).json()["model"] == "net.onnx"
        assert client.get("/model").json()["runtime"] == "ONNX Runtime"
        response = client.post("/mix", json={"images": ["", ""]})
        assert (response.status_code, "one image per pass" in response.json()["error"]) == (422, True)


@pytest.mark.parametrize("content", [None, b"", b"no model"])
def test_another_file_is_an_error(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(mixmo.UserError, match="ONNX"):
        OnnxBackend(path)


def test_a_file_of_another_program_is_an_error(exported: Path, tmp_path: Path) -> None:
    import onnx

    model = onnx.load(exported)
    del model.metadata_props[:]
    onnx.save(model, tmp_path / "other.onnx")
    with pytest.raises(mixmo.UserError, match="metadata"):
        OnnxBackend(tmp_path / "other.onnx")
