"""A report has the numbers of `mixmo eval`, is one file, and compares runs as `mixmo compare` does."""

import json
import math
import time
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
import safetensors.torch
import torch

import mixmo
from mixmo.cli.app import main
from mixmo.evaluation.comparison import compare_runs
from mixmo.metrics.diagrams import aurc
from mixmo.reports.build import document
from mixmo.reports.page import Charts, Table
from mixmo.reports.vega import Chart
from mixmo.runs.directory import Run

Copy = Callable[..., Path]


class Parsed(HTMLParser):
    """The texts of a page by section, the rows of its tables, its addresses, and all its tags."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.images: list[str] = []
        self.text: list[str] = []
        self.inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.tags.append(tag)
        self.addresses += [value for name in ("src", "href") if (value := values.get(name))]
        self.images += [values["src"] or ""] if tag == "img" else []
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th") and self.rows:
            self.rows[-1].append("")
        self.inside = tag

    def handle_endtag(self, tag: str) -> None:
        self.inside = "" if tag in ("script", "style") else self.inside

    def handle_data(self, data: str) -> None:
        if self.inside in ("script", "style"):
            return
        self.text.append(data)
        if self.rows and self.rows[-1] and self.inside in ("td", "th", "small"):
            self.rows[-1][-1] += ("|" if self.inside == "small" else "") + data.strip()


def parsed(page: object) -> Parsed:
    return Parsed(page.html)  # type: ignore[attr-defined]


def evaluated(capsys: pytest.CaptureFixture[str], *words: str) -> dict:
    capsys.readouterr()
    assert main(["eval", *words, "--json"]) == 0
    return dict(json.loads(capsys.readouterr().out))


def test_scores_are_those_of_mixmo_eval(runs: list[Run], capsys: pytest.CaptureFixture[str]) -> None:
    expected = evaluated(capsys, str(runs[0].path))
    rows = [row for row in parsed(mixmo.report(runs[0])).rows if len(row) == 9]
    heads, *rows = rows
    for place, which in ((0, "last"), (3, "best")):
        for i, scores in enumerate((expected[which]["ensemble"], *expected[which]["members"])):
            shown = dict(zip(heads, rows[place + i], strict=True))
            assert shown["Top1"] == f"{100 * scores['top1']:.2f} %"
            for name in ("NLL", "NLLc", "ECE", "ECEc", "Brier"):
                assert shown[name] == f"{scores[name.lower()]:.4f}", (which, name)


def test_scores_of_an_ensemble_are_those_of_mixmo_eval(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--epochs", "1", "--width", "1", "--batch-size", "256", "--quiet", "--device", "cpu"]
    assert main(["train", "digits/de2", *small, "--out", str(tmp_path / "de"), "--no-report"]) == 0
    expected = evaluated(capsys, str(tmp_path / "de"))["last"]
    page = parsed(mixmo.report(tmp_path / "de"))
    assert ["last", "ensemble", f"{100 * expected['ensemble']['top1']:.2f} %"] in [row[:3] for row in page.rows]
    assert "network 1" in page.text  # of the curves


def test_area_of_the_risk_coverage_curve_is_on_the_page(runs: list[Run]) -> None:
    logits_MNK, labels_N = runs[0].read_logits("last")
    assert f"ensemble {aurc(logits_MNK.double().mean(0), labels_N):.4f}" in mixmo.report(runs[0]).html


def test_the_page_loads_nothing_from_elsewhere(runs: list[Run], results: Path) -> None:
    for page in (mixmo.report(runs[0]), mixmo.report(results / "cut-mixmo-b4", results / "cutmix-b1")):
        addresses = parsed(page).addresses
        assert all(each.startswith(("#", "data:image/png;base64,")) for each in addresses), addresses
        assert "default-src 'none'" in page.html


def test_images_on_which_members_disagree_most_are_those_of_the_data_set(runs: list[Run]) -> None:
    logits_MNK, _ = runs[0].read_logits("last")
    first = int(mixmo.Prediction(logits_MNK.double()).mutual_information.argmax())
    page = parsed(mixmo.report(runs[0]))
    assert len(page.images) == 20
    from mixmo.inference.thumbnails import data_uri

    assert page.images[0] == data_uri(mixmo.data.load("digits").test.images[first])  # type: ignore[attr-defined]


def test_every_chart_compiles_and_says_what_it_shows(runs: list[Run], results: Path) -> None:
    vl_convert = pytest.importorskip("vl_convert")
    count = 0
    for paths in ([runs[0].path], [runs[1].path], [runs[0].path, runs[1].path], sorted(results.iterdir())):
        for section in document(paths).sections:
            for block in section.blocks:
                for chart in block.charts if isinstance(block, Charts) else ():
                    rows = {name: _rows(columns) for name, columns in chart.data.items()}
                    vl_convert.vegalite_to_vega({**chart.spec, "datasets": rows})
                    assert len(chart.alt) > 30
                    assert chart.alt.endswith(".")
                    count += 1
    assert count > 40


def _rows(columns: dict) -> list[dict]:
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def test_a_published_run_stands_beside_the_paper(results: Path) -> None:
    page = mixmo.report(results / "cut-mixmo-b4")
    shown = parsed(page)
    (row,) = [row for row in shown.rows if row[1:2] == ["the\u00a0paper"]]
    assert row[2] == "81.68 %"
    assert row[5] == "0.646"
    assert any("The paper's batch size is 64, this run's 256." in text for text in shown.text)
    assert page.missing == [
        "logits-last.safetensors: the file is missing, so calibration, risk, classes and disagreements are left out",
        "last.safetensors: the file is missing, so encoders and filters cannot be measured",
    ]


def test_several_runs_show_differences_seeds_and_recipes_as_compare_does(results: Path) -> None:
    paths = [results / name for name in ("cutmix-b1", "cutmix-b1-seed1", "cut-mixmo-b4")]
    expected = compare_runs(paths)
    rows = parsed(mixmo.report(*paths)).rows
    first, second, _ = (run.scores for run in expected.runs)
    shown, cost, _ = [row for row in rows if row[0] == "B cutmix-b1-seed1"]
    gap = 100 * ((second["top1"] or 0) - (first["top1"] or 0))
    assert shown[1] == f"{100 * (second['top1'] or 0):.2f} %|{gap:+.2f}".replace("-", "\u2212")
    (seeds,) = [row for row in rows if row[0] == "A cutmix-b1, B cutmix-b1-seed1"]
    mean, std = 100 * expected.seeds[0].mean["top1"], 100 * expected.seeds[0].std["top1"]
    assert seeds[2] == f"{mean:.2f} ± {std:.2f} %"
    assert cost == [
        "B cutmix-b1-seed1",
        "5.87 M",
        "9.5 min",
        "80.95 %|−0.60",
        "81.55 %|at batch 64",
        "0.737|+0.026",
        "0.711",
    ]
    (heads,) = [row[1:] for row in rows if row[:1] == ["run"] and "seed" in row]
    assert heads == list(expected.recipes)


def test_the_best_of_each_score_is_bold(results: Path) -> None:
    paths = sorted(results.iterdir())
    table = next(block for block in document(paths).sections[0].blocks if isinstance(block, Table))
    scores = [run.scores for run in compare_runs(paths).runs]
    columns = {"Top1": "top1", "NLL": "nll", "ECE": "ece"}
    for head, name in columns.items():
        values = [each[name] or 0.0 for each in scores]
        best = values.index(max(values) if name == "top1" else min(values))
        assert [row for row, column in table.bold if table.columns[column] == head] == [best]
    alone = document(paths[:1]).sections[0].blocks
    assert not any(block.bold for block in alone if isinstance(block, Table))


def charts_of(paths: list[Path], section: str) -> dict[str, Chart]:
    (found,) = [each for each in document(paths).sections if each.title == section]
    return {chart.title: chart for block in found.blocks if isinstance(block, Charts) for chart in block.charts}


def test_letters_of_runs_overlap_neither_bars_nor_each_other(results: Path) -> None:
    """Each is about 5 % of the chart's width and 4 % of its height, on one side of its mark."""
    for chart in charts_of(sorted(results.iterdir()), "Trade-offs").values():
        points = _rows(chart.data["points"])
        layer = chart.spec["layer"][-1]["encoding"]
        (left, right), (bottom, top) = layer["x"]["scale"]["domain"], layer["y"]["scale"]["domain"]
        log = layer["x"]["scale"].get("type") == "log"
        boxes = []
        for point in points:
            share = (
                math.log(point["x"] / left) / math.log(right / left) if log else (point["x"] - left) / (right - left)
            )
            height = (point["height"] - bottom) / (top - bottom)
            at = share + (-0.06 if point["side"] else 0.015)
            boxes.append((at, at + 0.045, height - 0.02, height + 0.02, share, point))
        for i, (a, b, low, high, _, _) in enumerate(boxes):
            for j, (c, d, below, above, share, point) in enumerate(boxes):
                if i == j:
                    continue
                assert b <= c or d <= a or high <= below + 1e-9 or above <= low + 1e-9, (chart.title, i, j)
                start = (point.get("low", point["y"]) - bottom) / (top - bottom)
                end = (point["y"] - bottom) / (top - bottom)
                assert not (a < share < b and low < end and start < high), (chart.title, i, j)


def test_the_learning_rate_drops_where_the_schedule_says(results: Path) -> None:
    """A scored epoch holds the rate of its own steps: of 100 and 104, the rate changes after 100."""
    chart = charts_of([results / "cut-mixmo-b4-ghost-seed1"], "Curves")["Learning rate"]
    rows = _rows(chart.data["curves"])
    assert [(row["x"], row["y"]) for row in rows if row["x"] in (100, 104)] == [(100, 0.05), (104, 0.005)]
    assert chart.spec["layer"][0]["mark"]["interpolate"] == "step-before"


def test_losses_of_different_numbers_of_members_carry_a_warning(results: Path) -> None:
    for names, warned in ((("cutmix-b1", "cut-mixmo-b4"), True), (("cutmix-b1", "vanilla-b1"), False)):
        loss = charts_of([results / name for name in names], "Curves")["Training loss"]
        assert ("same number of members" in loss.caption) == warned


def test_a_run_of_300_epochs_and_10_000_images_takes_under_10_seconds_and_5_megabytes(
    results: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    for file in (results / "cut-mixmo-b1").iterdir():
        (run / file.name).write_bytes(file.read_bytes())
    generator = torch.Generator().manual_seed(0)
    labels_N = torch.arange(10_000) % 100
    logits_MNK = torch.randn(2, 10_000, 100, generator=generator) + 3 * torch.nn.functional.one_hot(labels_N, 100)
    safetensors.torch.save_file({"logits": logits_MNK, "labels": labels_N}, run / "logits-last.safetensors")
    began = time.monotonic()
    page = mixmo.report(run)
    assert time.monotonic() - began < 10
    assert len(page.html.encode()) < 5e6
    assert "Reliability after temperature" in page.html


def test_command_writes_into_the_run_and_replaces_only_reports(
    copy: Copy, capsys: pytest.CaptureFixture[str], said: Callable[..., str], tmp_path: Path
) -> None:
    run = copy()
    for _ in range(2):
        assert main(["report", str(run)]) == 0
        assert capsys.readouterr().out.startswith(f"{run / 'report.html'} (")
    assert "is not a report" in said("report", run, "--out", run / "scores.json")
    assert "is not a run directory" in said("report", tmp_path)
    assert "twice" in said("report", run, run)


def test_a_notebook_shows_the_page_in_a_frame(runs: list[Run]) -> None:
    page = mixmo.report(runs[1])
    frame = Parsed(page._repr_html_())
    assert frame.tags == ["iframe"]


def test_mistakes_raise_one_sentence(runs: list[Run]) -> None:
    with pytest.raises(mixmo.UserError, match="no run was given"):
        mixmo.report()
    with pytest.raises(mixmo.UserError, match="epoch"):
        mixmo.report(runs[0], which="first")
    with pytest.raises(mixmo.UserError, match="give a path"):
        mixmo.report(3)  # type: ignore[arg-type]


def test_measured_corruptions_and_ood_are_shown(copy: Copy) -> None:
    run = copy()
    brief = {"top1": 0.5, "top5": 0.75, "nll": 1.25}
    corrupted = {"folder": "data/CIFAR-100-C", "which": "last", "clean": brief, "pooled": brief, "mce": 0.4321}
    corrupted["corruptions"] = {"fog": {"1": brief, "2": {**brief, "top1": 0.25}}}
    (run / "corruptions.json").write_text(json.dumps({"runs": [], "corrupted": corrupted}))
    detectors = {"entropy": {"auroc": 0.9125, "aupr": 0.8, "fpr95": 0.5}}
    (run / "ood.json").write_text(json.dumps({"ood": {"inside": "digits", "outside": "svhn", "detectors": detectors}}))
    page = parsed(mixmo.report(run))
    assert ["fog", "50.00 %", "25.00 %", "37.50 %", "75.00 %", "1.2500"] in page.rows
    assert ["entropy", "91.25 %", "80.00 %", "50.00 %"] in page.rows
    assert any("43.21 %" in text for text in page.text)
    (run / "ood.json").write_text(json.dumps({"ood": {"detectors": 3}}))  # not what eval prints
    assert any("robustness" in sentence for sentence in mixmo.report(run).missing)
