"""What is printed, and what happens when the reader has gone."""

import subprocess
import sys
from collections.abc import Callable

import pytest
from rich.table import Table

from mixmo.cli.console import Output, grid, print_line, print_table


def test_brackets_in_names_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("who")
    table.add_row("[red]a[/red]")
    Output(100).print("runs/[/bold]", style="bold")
    Output(100).print(table)
    printed = capsys.readouterr().out
    assert "runs/[/bold]" in printed
    assert "[red]a[/red]" in printed


def test_reader_that_closes_the_pipe_is_no_error() -> None:
    """As in `mixmo analyse ... | head -1`."""
    script = (
        "import sys, mixmo.cli.list; from mixmo.cli.app import main; from mixmo.cli.console import Output\n"
        "def many(_):\n"
        "    for i in range(100_000): Output(100).print(f'line {i}')\n"
        "mixmo.cli.list.main = many; sys.exit(main(['list']))"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"line 0\n"
        process.stdout.close()
        assert process.wait(60) == 0
        assert process.stderr.read() == b""


@pytest.mark.parametrize(
    ("place", "said"),
    [("l.__file__", "mixmo: 3 are skipped\n"), ("'other.py'", "other.py:7: UserWarning: 3 are skipped\n")],
)
def test_warnings_of_this_package_are_sentences(place: str, said: str) -> None:
    script = (
        "import warnings, mixmo.cli.list as l; from mixmo.cli.app import main\n"
        f"l.main = lambda _: warnings.warn_explicit('3 are skipped', UserWarning, {place}, 7)\n"
        "main(['list'])"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stderr == said


def test_escapes_in_names_steer_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    table = grid("class \x1b[31m", rows=[("cat\x1b]0;title\x07",)], title="run\u202e")
    print_table(table)
    print_line("first\nsecond \x1b[2J")
    printed = capsys.readouterr().out
    assert not {"\x1b", "\x07", "\u202e"} & set(printed)
    assert "cat\\x1b]0;title\\x07" in printed
    assert "first\nsecond \\x1b[2J\n" in printed


def test_escapes_in_errors_are_spelled_out(said: Callable[..., str]) -> None:
    assert "a\\x1b[31m" in said("show", "a\x1b[31m")
