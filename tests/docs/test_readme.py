"""The README's Python runs as it is written there; its commands exist, and what all pages link to."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mixmo
from mixmo.cli.app import COMMANDS
from mixmo.recipes import named

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
PAGES = sorted({*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("results/*.md"), *ROOT.glob("benchmarks/*.md")})


def test_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Wrap, two steps on random images, predict, export, and ask onnxruntime."""
    (code,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    loader = [(torch.randn(4, 3, 64, 64), torch.randint(0, 5, (4,))) for _ in range(2)]
    names: dict[str, Any] = {"loader": loader, "steps": 2, "names": ["cat", "dog", "owl", "newt", "bee"]}
    monkeypatch.chdir(tmp_path)
    exec(code, names)
    lines = [line for line in capsys.readouterr().out.splitlines() if " sure, entropy " in line]
    assert len(lines) == 4
    assert all(line.split(":")[0] in names["names"] for line in lines)
    prediction = mixmo.predict(names["net"], loader[-1][0])
    np.testing.assert_allclose(names["probs"], prediction.probs, atol=1e-4)
    np.testing.assert_allclose(names["members"], prediction.members.transpose(0, 1), atol=1e-4)
    np.testing.assert_allclose(names["information"], prediction.mutual_information, atol=1e-4)
    assert names["session"].get_modelmeta().custom_metadata_map["folded"] == "true"


def test_commands_and_recipes_exist() -> None:
    used = re.findall(r"^mixmo (\w+)(?: (\S+))?", README, flags=re.MULTILINE)
    assert used
    for command, first in used:
        assert command in COMMANDS
        if command in ("train", "show"):
            named(first)


def text(page: Path) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """Of its headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", text(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)]+)\)", text(page)):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link
