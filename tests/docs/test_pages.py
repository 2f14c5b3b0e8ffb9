"""Every page: its links lead somewhere, its commands and options exist, and the API pages have every public name."""

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import mixmo
from mixmo.cli.app import COMMANDS, main
from mixmo.recipes import named

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    {*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("results/*.md"), *ROOT.glob("benchmarks/*.md")}
)
IDS = [str(page.relative_to(ROOT)) for page in PAGES]
CODE = re.compile(r"^```.*?^```|^ {4}\S.*?$", flags=re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"(?:^|\$ |-m |\d )\s*(mixmo [a-z][^\n#]*)", flags=re.MULTILINE)


def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """Of its headings, and of those of a file that it includes."""
    text = prose(page)
    for included in re.findall(r'^--8<-- "(.*)"$', text, flags=re.MULTILINE):
        text += prose(ROOT / included)
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)]+)\)", prose(page)):
        if link.startswith("https://arxiv.org/"):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def commands(page: Path) -> Iterator[list[str]]:
    """The words after `mixmo` of every command of a page: in blocks of code, and between backticks."""
    text = page.read_text().replace("\\\n", " ")
    lines = [line for block in CODE.findall(text) for line in COMMAND.findall(block)]
    for line in lines + re.findall(r"`(mixmo [a-z][^`]*)`", CODE.sub("", text)):
        yield shlex.split(line.replace("...", " ").split(";")[0])[1:]


@cache
def options(command: tuple[str, ...]) -> frozenset[str]:
    """The options that the help of a command names, spelled with dashes."""
    with pytest.MonkeyPatch.context() as patch:
        printed: list[str] = []
        patch.setattr("sys.stdout.write", lambda text: printed.append(text) or len(text))
        with pytest.raises(SystemExit):
            raise SystemExit(main([*command, "--help"]))
    return frozenset(word.replace("_", "-") for word in re.findall(r"--[a-z][\w-]*", "".join(printed))) | {"--plugin"}


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_commands_and_their_options_exist(page: Path) -> None:
    for words in commands(page):
        command = tuple(words[: 2 if words[0] in ("data", "plot") else 1])
        if words[0] == "help" or any(word.isupper() for word in command):
            continue
        assert words[0] in COMMANDS, words
        known = options(command)
        given = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert given <= known, words
        if words[0] in ("train", "show") and len(words) > 1 and "/" in words[1]:
            named(words[1])


def test_api_pages_have_every_public_name() -> None:
    listed = re.findall(
        r"^::: mixmo\.(\w+)$", (ROOT / "docs" / "reference" / "mixmo.md").read_text(), flags=re.MULTILINE
    )
    assert sorted(listed) == sorted(set(mixmo.__all__) - {"__version__"})


def test_quick_start_runs_as_printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)  # it reads tests/samples
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "quickstart.md").read_text(), flags=re.DOTALL)
    exec(code, {})
    assert capsys.readouterr().out.startswith("forest")


def test_citation_has_the_version_of_the_package() -> None:
    assert f"\nversion: {mixmo.__version__}\n" in (ROOT / "CITATION.cff").read_text()
