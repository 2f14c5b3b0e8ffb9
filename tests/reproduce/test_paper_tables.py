"""The paper's tables as data: well formed, and number by number what the paper's source has."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from mixmo import UserError
from mixmo.recipes import METHODS, PROTOCOLS
from mixmo.recipes.schema import FIELDS
from mixmo.reproduce import paper, scores
from mixmo.reproduce.paper import FOLDER

NUMBER = re.compile(r"\d+(?:\.\d+)?")
TABLES = {
    "main-table": "table:cifar10010",
    "mixing": "table:cifar100_othermixingmethod",
    "encoders-classifiers": "table:cifar100sh",
    "cifar100-c": "table:cifar100c",
    "tiny-imagenet": "table:tiny200",
    "best-ensembles": "table:cifar100sota",
    "active-filters": "table:feat_l1",
    "no-early-stopping": "table:cifar10010end",
    "summary": "table:splitadvantage",
}


def test_every_file_is_an_entry() -> None:
    assert {Path(str(path)).stem for path in FOLDER.iterdir()} == set(paper.names())


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(UserError, match="did you mean 'main-table'"):
        paper.load("main-tabel")


@pytest.mark.parametrize("name", paper.names())
def test_entries_say_only_what_is_known(name: str) -> None:
    table = paper.load(name)
    changes = [table.common, *[row.changes for row in table.rows], *[column.changes for column in table.columns]]
    for said in changes:
        assert set(said) <= {*FIELDS, "method"}
        assert said.get("method", "vanilla") in METHODS
        assert said.get("dataset", "cifar100") in PROTOCOLS
    assert all(column.score.split()[0] in scores.KINDS for column in table.columns)
    assert all((column.unit or "1") in scores.UNITS for column in table.columns)
    assert len({row.label for row in table.rows}) == len(table.rows)
    assert all(other in paper.names() for other in table.see)
    assert table.which in ("best", "last", "last10")


# The paper's source, where it lies beside the repository ----------------------------------------------------------


@pytest.fixture(scope="module")
def tex() -> str:
    for parent in Path(__file__).resolve().parents:
        path = parent / "shared" / "paper" / "mixmo.tex"
        if path.is_file():
            return path.read_text()
    pytest.skip("no shared/paper/mixmo.tex above the tests: the paper's source is not part of this repository")


def cells(tex: str, label: str) -> list[list[str]]:
    """The cells of a table's lines, without what only lays them out."""
    end = tex.index(f"\\label{{{label}}}")
    start = max(
        tex.rindex(f"\\begin{{{kind}}}", 0, end) for kind in ("table", "table*", "wraptable") if kind in tex[:end]
    )
    body = tex[start:end]
    body = re.sub(r"\\begin\{tabular\}\{@\{\}c@\{\}\}(.*?)\\end\{tabular\}", lambda m: m[1].replace("\\\\", " "), body)
    body = re.sub(r"\\(?:multirow|multicolumn)\{\d+\}\{[^}]*\}", " ", body)
    body = re.sub(r"\\(?:cmidrule|cite|scalebox|resizebox)\{[^}]*\}", " ", body)
    body = body.replace("\\midrule", " ").replace("\\bottomrule", " ").replace("\\toprule", " ")
    body = re.sub(r"\\textbf\{([^}]*)\}", r"\1", body)
    return [[cell.strip(" \n{}$%") for cell in line.split("&")] for line in body.split("\\\\")]


def numbers(line: list[str]) -> list[float | None]:
    """The numbers of a line: a dash is None, anything else is left out."""
    found: list[float | None] = []
    for cell in line:
        if cell == "-":
            found.append(None)
        elif NUMBER.fullmatch(cell):
            found.append(float(cell))
    return found


def ours(name: str) -> Iterator[list[float | None]]:
    table = paper.load(name)
    for i in range(len(table.rows)):
        row = [table.figures.get((i, j)) for j in range(len(table.columns))]
        yield [None if figure is None else figure.value for figure in row]


def test_every_table_of_the_paper_is_an_entry(tex: str) -> None:
    labels = set(re.findall(r"\\label\{(table:[^}]*)\}", tex))
    assert labels == set(TABLES.values())
    assert TABLES.keys() <= set(paper.names())


def test_every_figure_with_content_has_a_source() -> None:
    sources = " ".join(paper.load(name).source for name in paper.names())
    tables, figures = (set(map(int, re.findall(r"\d+", part))) for part in split_sources(sources))
    assert tables == set(range(1, 10))
    # 1 and 3 show the method itself, with numbers of Table 1; 13 the masks.
    assert figures == {2, *range(4, 16)}


def split_sources(text: str) -> tuple[str, str]:
    found: dict[str, list[str]] = {"Table": [], "Figure": []}
    for kind, rest in re.findall(r"(Table|Figure)s? ((?:\d+[ab]?(?:, | and )?)+)", text):
        found[kind].append(rest)
    return " ".join(found["Table"]), " ".join(found["Figure"])


@pytest.mark.parametrize("name", ["main-table", "no-early-stopping", "tiny-imagenet"])
def test_numbers_of_tables_by_line_are_the_papers(tex: str, name: str) -> None:
    """A line a row, its numbers in the order of the columns."""
    width = len(paper.load(name).columns)
    theirs = [found for line in cells(tex, TABLES[name]) if len(found := numbers(line)[-width:]) == width]
    assert theirs == list(ours(name))


@pytest.mark.parametrize("name", ["mixing", "cifar100-c"])
def test_numbers_of_tables_by_column_are_the_papers(tex: str, name: str) -> None:
    """The paper has the scores below each other."""
    count = len(paper.load(name).rows)
    lines = [numbers(line) for line in cells(tex, TABLES[name])]
    theirs = [found for found in lines if len(found) == count and None not in found]
    assert [list(column) for column in zip(*ours(name), strict=True)] == theirs


def test_scores_of_encoders_and_classifiers_are_the_papers(tex: str) -> None:
    lines = [[float(n) for n in NUMBER.findall(" ".join(line))] for line in cells(tex, TABLES["encoders-classifiers"])]
    theirs = [line[-1] for line in lines if len(line) == 3 and line[-1] < 1]
    assert [row[0] for row in ours("encoders-classifiers")] == theirs


def test_shares_of_active_filters_are_the_papers(tex: str) -> None:
    lines = [numbers(line) for line in cells(tex, TABLES["active-filters"])]
    widths_and_shares = [line for line in lines if len(line) == 5]
    table = paper.load("active-filters")
    assert [[row.changes["width"], *values] for row, values in zip(table.rows, ours(table.name), strict=True)] == (
        widths_and_shares
    )


def test_scores_of_the_best_ensembles_are_the_papers(tex: str) -> None:
    lines = [" ".join(line) for line in cells(tex, TABLES["best-ensembles"]) if "pm" in " ".join(line)]
    theirs = [
        [float(n) for n in NUMBER.findall(re.sub(r"^\d+|[\d.]+M", " ", line.split("midrule")[-1]))] for line in lines
    ]
    table = paper.load("best-ensembles")
    for i, line in enumerate(theirs):
        figures = [table.figures[i, j] for j in range(6)]
        assert line == [n for figure in figures for n in figure if n is not None]


def test_scores_of_the_summary_are_the_papers(tex: str) -> None:
    lines = [numbers(line) for line in cells(tex, TABLES["summary"])]
    theirs = [[n for n in line if n is not None][-10:] for line in lines if len(line) >= 10]
    theirs = [line for line in theirs if len(line) == 10]
    mine = []
    for row in ours("summary"):
        mine += [row[0::2], row[1::2]]
    assert mine == theirs


def test_parameters_and_operations_are_the_papers(tex: str) -> None:
    table = paper.load("parameters")
    for i, row in enumerate(table.rows):
        printed = f"{table.figures[i, 0].value:.6g}"
        assert re.search(rf"{re.escape(printed)}0?M", tex), row.label
    assert {table.figures[place].value for place in table.figures if place[1] == 1} == {5.9565, 5.9571}
    assert "5.9571G Flops for MixMo vs. 5.9565G" in tex


# In the order of the text: row and column of each number.
TEXTS = {
    "imagenet": (r"\label{app:imagenet}", [(2, 0), (2, 1), (0, 0), (0, 1), (1, 0), (1, 1)]),
    "members": (r"\label{expe:mheads}", [(6, 1), (7, 1), (0, 1), (1, 1)]),
    "p": (r"so does diversity", [(0, 3), (3, 3), (8, 3), (7, 3)]),
}
TEXTS["imagenet"][1].extend([(i, j + 2) for i, j in TEXTS["imagenet"][1]])


@pytest.mark.parametrize("name", TEXTS)
def test_numbers_of_the_text(tex: str, name: str) -> None:
    start, places = TEXTS[name]
    text, figures = tex[tex.index(start) :].partition("%% file:")[0], paper.load(name).figures
    assert sorted(places) == sorted(figures)
    for place in places:
        found = re.search(rf"(?<![\d.]){figures[place].value:g}0*(?!\d)", text)
        assert found, (name, place)
        text = text[found.end() :]
