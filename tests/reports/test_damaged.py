"""Runs that are unfinished, damaged, of other versions or named by someone hostile still give a report."""

import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

import mixmo
from mixmo.engine import Runtime, train
from mixmo.recipes import named
from mixmo.runs.directory import Run

Copy = Callable[..., Path]
FILES = ("recipe.yaml", "metrics.jsonl", "scores.json", "dataset.json", "environment.json", "logits-last.safetensors")
DAMAGE: dict[str, bytes | None] = {
    "removed": None,
    "empty": b"",
    "text": b"nothing of this kind \x00\xff\n",
    "another shape": b'["a", {"b": 1}, null]\n',
    "a number": b"7\n",
}
HOSTILE = [
    "<script>window.hacked=1</script>",
    "</script><img src=x onerror=window.hacked=1>",
    "{{ 7*7 }}",
    "a.b[0]",
    "\x1b[31mred\x07",
    "\u202egnp",
    "\"'` onmouseover=window.hacked=1",
    "]]> --> &lt;",
    "${window.hacked=1}",
    "@@CONTENT@@",
]


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("file", [*FILES, "last.safetensors"])
def test_a_damaged_file_is_named_and_the_rest_is_shown(copy: Copy, file: str, damage: str) -> None:
    run, content = copy(), DAMAGE[damage]
    (run / file).unlink() if content is None else (run / file).write_bytes(content)
    page = mixmo.report(run)
    word = "weights" if file == "last.safetensors" and content is not None else file
    assert any(word in each for each in page.missing), page.missing
    assert "Summary" in page.html
    assert mixmo.report(run, copy("other")).html  # beside a whole one


def test_every_file_damaged_at_once_still_gives_a_page(copy: Copy) -> None:
    run = copy()
    for file in FILES:
        (run / file).write_bytes(b"\x00{[")
    page = mixmo.report(run)
    assert len(page.missing) >= len(FILES) - 1
    assert ">Missing</h2>" in page.html


def test_a_changed_digit_is_told(runs: list[Run], tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    for file in runs[0].path.iterdir():
        if file.is_file():
            (run / file.name).write_bytes(file.read_bytes())
    text = (run / "scores.json").read_text()
    (run / "scores.json").write_text(text.replace('"top1": 0', '"top1": 1', 1))
    assert any("not as it was when it was saved" in each for each in mixmo.report(run).missing)


def test_a_half_written_line_of_the_log_leaves_the_others(copy: Copy) -> None:
    run = copy()
    lines = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text(f"{lines[0]}\n{lines[1][:40]}\n")
    page = mixmo.report(run)
    assert any("its 1 readable lines" in each for each in page.missing)
    assert "Test accuracy" in page.html


def test_an_unfinished_run_shows_its_last_scored_epoch(tmp_path: Path) -> None:
    recipe = named("digits/cut-mixmo").replace(epochs=3, width=1, batch_size=256)
    run = train(recipe, tmp_path / "run", Runtime(device="cpu", quiet=True), until=12)  # one epoch and a bit
    page = mixmo.report(run)
    line = run.read_metrics()[-1]
    assert f"{100 * line['test']['ensemble']['top1']:.2f} %" in page.html
    assert "epoch 1 of 3" in page.html
    assert ">stopped<" in page.html
    assert any("the training is unfinished" in each for each in page.missing)
    assert "Encoders and filters" in page.html  # of its checkpoint


def test_a_run_of_an_earlier_version_is_shown(copy: Copy) -> None:
    run = copy(without=("dataset.json",))
    fields = yaml.safe_load((run / "recipe.yaml").read_text())
    fields["hidden"] = fields.pop("feature_mixing")
    del fields["ghost"], fields["val"]
    (run / "recipe.yaml").write_text(yaml.safe_dump(fields))
    scores = json.loads((run / "scores.json").read_text())
    for which in ("last", "best"):
        del scores[which]["diversity"], scores[which]["ensemble"]["ecec"]
    (run / "scores.json").write_text(json.dumps(scores))
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        del line["test"]["diversity"], line["p"]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = mixmo.report(run)
    assert any("numbers instead of names" in each for each in page.missing)
    assert "class 3" in page.html


def test_a_recipe_of_a_later_version_is_shown_as_far_as_it_is_known(copy: Copy) -> None:
    run = copy()
    with (run / "recipe.yaml").open("a") as file:
        file.write("quantum: true\n")
    page = mixmo.report(run)
    assert any("quantum" in each for each in page.missing)
    assert "Test accuracy" in page.html
    assert "cut" in page.html


def hostile_run(run: Path) -> Path:
    """Give the classes of a run hostile names, and a folder too."""
    about = json.loads((run / "dataset.json").read_text())
    about["classes"] = HOSTILE
    (run / "dataset.json").write_text(json.dumps(about))
    environment = json.loads((run / "environment.json").read_text())
    environment["device_name"] = HOSTILE[1]
    (run / "environment.json").write_text(json.dumps(environment))
    return run.rename(run.with_name("<img src=x onerror=alert(1)> \x1b[2J\udcff"))


def test_hostile_names_stay_text(copy: Copy) -> None:
    run = hostile_run(copy())
    for page in (mixmo.report(run), mixmo.report(run, copy("other"))):
        body = page.html
        assert "<img src=x" not in body
        assert "<script>window" not in body
        assert "\x1b" not in body
        assert "\u202e" not in body
        assert "\\u001b" not in body


def test_hostile_names_send_nothing_to_the_terminal(copy: Copy, capsys: pytest.CaptureFixture[str]) -> None:
    from mixmo.cli.app import main

    run = hostile_run(copy())
    (run / "scores.json").write_text('{"\x1b[31m')
    for words in (["report", str(run)], ["runs", str(run.parent)], ["runs", str(run.parent), "--json"]):
        assert main(words) == 0
        printed = capsys.readouterr()
        assert "\x1b" not in printed.out + printed.err


WEIRD = [None, "x", -1, 1e308, float("nan"), [], {}, "<b>", [1, "a", None], {"a": {"b": 1}}]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of everything inside nested dicts and lists."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield (*path, key)
        yield from places(value[key], (*path, key))


@pytest.mark.parametrize("file", ["scores.json", "metrics.jsonl", "dataset.json", "environment.json"])
def test_any_value_of_a_file_may_be_another(copy: Copy, file: str) -> None:
    run, random = copy(), Random(0)
    text = (run / file).read_text()
    whole = [json.loads(line) for line in (text.splitlines() if file == "metrics.jsonl" else [text])]
    for _ in range(12):
        content = deepcopy(whole)
        *path, last = random.choice(list(places(content)))
        inner: Any = content
        for key in path:
            inner = inner[key]
        inner[last] = random.choice(WEIRD)
        (run / file).write_text("".join(json.dumps(each) + "\n" for each in content))
        page = mixmo.report(run)
        embedded = page.html.partition('<script id="data" type="application/json">')[2].partition("</script>")[0]
        json.loads(embedded, parse_constant=pytest.fail)  # NaN is no JSON: the page would be empty
        assert "Summary" in page.html
        assert "Test accuracy" in page.html
