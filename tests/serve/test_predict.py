"""POST /predict gives the numbers of mixmo.predict, to every client its own."""

import base64
import io
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families

import mixmo
from mixmo.data.decode import to_square
from mixmo.models.network import Ensemble
from mixmo.serve.backends import TorchBackend

Draw = Callable[..., bytes]


def expected(net: Ensemble, files: list[bytes]) -> mixmo.Prediction:
    """What mixmo.predict gives for the files, as `mixmo predict` reads them."""
    pixels = np.stack([to_square(Image.open(io.BytesIO(file)), 32) for file in files])
    return mixmo.predict(net, pixels)


def assert_equal(answers: list[dict[str, Any]], prediction: mixmo.Prediction, names: tuple[str, ...]) -> None:
    assert [answer["label"] for answer in answers] == [names[k] for k in prediction.labels.tolist()]
    assert [answer["index"] for answer in answers] == prediction.labels.tolist()
    for name, values in (
        ("probability", prediction.confidence),
        ("calibrated_probability", prediction.calibrated.amax(1)),
        ("entropy", prediction.entropy),
        ("mutual_information", prediction.mutual_information),
        ("disagreement", prediction.disagreement),
    ):
        assert [answer[name] for answer in answers] == pytest.approx(values.tolist(), abs=1e-5), name
    for n, answer in enumerate(answers):
        assert sorted(answer["set"]) == sorted(
            name for name, inside in zip(names, prediction.sets[n], strict=True) if inside
        )
        assert answer["abstain"] == prediction.abstain[n].item()
        for listed, probs in (
            (answer["ensemble"], prediction.probs[n]),
            *zip(answer["members"], prediction.members[:, n], strict=True),
        ):
            given = {row["label"]: row["probability"] for row in listed}
            assert given == pytest.approx(dict(zip(names, probs.tolist(), strict=True)), abs=1e-5)
            assert list(given.values()) == sorted(given.values(), reverse=True)


@pytest.mark.parametrize("how", ["form", "json", "data-urls"])
def test_numbers_are_those_of_predict_in_the_order_of_the_files(
    how: str, client: httpx.Client, net: Ensemble, draw_file: Draw
) -> None:
    files = [draw_file(seed) for seed in range(5)]
    if how == "form":
        sent: dict[str, Any] = {"files": [("files", (f"{n}.png", file)) for n, file in enumerate(files)]}
    else:
        head = "data:image/png;base64," if how == "data-urls" else ""
        sent = {"json": {"images": [head + base64.b64encode(file).decode() for file in files]}}
    response = client.post("/predict?top=7", **sent)
    assert response.status_code == 200, response.text
    content = response.json()
    assert content["model"] == "small"
    assert [answer["name"] for answer in content["predictions"]] == [
        f"{n}.png" if how == "form" else None for n in range(5)
    ]
    prediction = expected(net, files)
    assert len(set(prediction.labels.tolist())) > 1
    assert prediction.disagreement.max() > 0
    assert_equal(content["predictions"], prediction, net.about.classes)


@pytest.mark.parametrize(
    ("mode", "kind"),
    [
        ("CMYK", "JPEG"),
        ("I;16", "PNG"),
        ("L", "PNG"),
        ("P", "GIF"),
        ("RGBA", "WEBP"),
        ("RGB", "BMP"),
        ("RGB", "TIFF"),
        ("RGB", "PPM"),
    ],
)
def test_every_format_is_read_as_by_predict(
    mode: str, kind: str, client: httpx.Client, net: Ensemble, draw_file: Draw
) -> None:
    file = draw_file(3, mode=mode, kind=kind)
    response = client.post("/predict?top=7", files={"files": ("x", file)})
    assert response.status_code == 200, response.text
    assert_equal(response.json()["predictions"], expected(net, [file]), net.about.classes)


def test_phone_pictures_with_a_preview_inside_are_read(client: httpx.Client, draw_file: Draw) -> None:
    file = draw_file(3, kind="MPO", save_all=True, append_images=[Image.new("RGB", (8, 8))])
    assert client.post("/predict", files={"files": file}).status_code == 200


def test_top_and_input_change_what_is_listed(client: httpx.Client, draw_file: Draw) -> None:
    file = draw_file(1)
    answer = client.post("/predict?top=2&input=true", files={"files": file}).json()["predictions"][0]
    assert len(answer["ensemble"]) == len(answer["members"][0]) == 2
    seen = np.asarray(Image.open(io.BytesIO(base64.b64decode(answer["input"].partition(",")[2]))))
    assert np.array_equal(seen, to_square(Image.open(io.BytesIO(file)), 32))
    assert "input" not in client.post("/predict", files={"files": file}).json()["predictions"][0]


def test_concurrent_clients_share_forward_passes_and_get_their_own_answers(
    client: httpx.Client, net: Ensemble, draw_file: Draw
) -> None:
    files = [draw_file(seed) for seed in range(48)]
    before = metric(client, "mixmo_batch_images_count")

    def ask(file: bytes) -> dict[str, Any]:
        with httpx.Client(base_url=client.base_url, timeout=20) as own:
            return own.post("/predict?top=7", files={"files": file}).json()["predictions"][0]

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(ask, files))
    prediction = expected(net, files)
    assert 0 < prediction.abstain.sum() < 48  # or the comparison would say little
    assert len({sum(inside) for inside in prediction.sets.tolist()}) > 1
    assert_equal(answers, prediction, net.about.classes)
    assert metric(client, "mixmo_batch_images_count") - before < len(files)


@pytest.mark.parametrize("count", [1, 3, 4, 5, 9, 13])
def test_padding_a_batch_leaves_every_prediction_as_it_is(count: int, net: Ensemble, draw_file: Draw) -> None:
    """As on a GPU: 9 images are batches of 4, 4 and 1, and 13 one more of 4."""
    files = [draw_file(seed) for seed in range(count)]
    pixels = torch.from_numpy(np.stack([to_square(Image.open(io.BytesIO(file)), 32) for file in files]))

    class Small(TorchBackend):
        batch = 4

    plain, padded = (Small([net], "small", net.about.calibration) for _ in range(2))
    assert plain.sizes == ()
    padded.sizes = (2, 4)
    logits = padded.predict(pixels).logits
    torch.testing.assert_close(logits, plain.predict(pixels).logits, rtol=1e-5, atol=1e-5)
    assert padded.predict(pixels).calibration == plain.predict(pixels).calibration


def metric(client: httpx.Client, name: str) -> float:
    families = text_string_to_metric_families(client.get("/metrics").text)
    return next(sample.value for family in families for sample in family.samples if sample.name == name)


def test_metrics_count_requests_by_path_and_status(client: httpx.Client) -> None:
    def count(path: str, status: str) -> float:
        families = text_string_to_metric_families(client.get("/metrics").text)
        rows = [sample for family in families for sample in family.samples if sample.name == "mixmo_requests_total"]
        return sum(row.value for row in rows if row.labels["path"] == path and row.labels["status"] == status)

    before = count("/predict", "415"), count("other", "404")
    assert client.post("/predict", content=b"x").status_code == 415
    for n in range(3):
        assert client.get(f"/no-such-{n}").status_code == 404
    assert (count("/predict", "415"), count("other", "404")) == (before[0] + 1, before[1] + 3)


def test_model_describes_the_network(client: httpx.Client, net: Ensemble) -> None:
    model = client.get("/model").json()
    assert (model["name"], model["members"], model["size"]) == ("small", 2, [3, 32, 32])
    assert tuple(model["classes"]) == net.about.classes
    assert mixmo.Calibration.from_dict(model["calibration"]) == net.about.calibration
    assert model["limits"]["max_images"] == 64
    assert {"cut", "linear"} <= set(model["masks"])
    assert client.get("/health").json() == {"status": "ok"}


def test_a_network_without_calibration_leaves_those_fields_empty(serve: Any, draw_file: Draw) -> None:
    net = mixmo.create("wrn10_1", classes=3, members=2)
    net.about = mixmo.About((1, 32, 32), (0.5,), (0.5,))
    net.encoders = torch.nn.ModuleList([torch.nn.Conv2d(1, 16, 3, padding=1) for _ in range(2)])
    with serve(TorchBackend([net], "bare")) as client:
        answer = client.post("/predict", files={"files": draw_file(0)}).json()["predictions"][0]
    assert answer["calibrated_probability"] is answer["set"] is answer["abstain"] is None
    assert answer["label"] == str(answer["index"])


def test_the_python_of_the_guide_runs_as_printed(
    client: httpx.Client,
    draw_file: Draw,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    guide = Path(__file__).resolve().parents[2] / "docs" / "guides" / "serve.md"
    code = re.findall(r"```python\n(.*?)```", guide.read_text(), flags=re.DOTALL)[0]
    (tmp_path / "cat.jpg").write_bytes(draw_file(0, kind="JPEG"))
    monkeypatch.chdir(tmp_path)
    exec(code.replace("http://127.0.0.1:8000", str(client.base_url)), {})
    assert capsys.readouterr().out.strip()
