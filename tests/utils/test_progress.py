"""Progress on standard error: bars on a terminal, lines elsewhere, nothing outside of `shown`."""

import io
import os
import pty
import re
import select
import subprocess
import sys
import threading
import time
from contextlib import redirect_stderr
from types import SimpleNamespace

import pytest

from mixmo.utils import progress
from mixmo.utils.progress import Board, Bytes, Work, shown, track

TERMINAL = """
import importlib.util, sys, time
found = importlib.util.spec_from_file_location("progress", sys.argv[1])  # without the rest, which takes seconds
progress = importlib.util.module_from_spec(found)
found.loader.exec_module(progress)
progress.SHORT = progress.TICK = 0.1
with progress.shown(), progress.Work("counting", 4) as work:
    for number in range(4):
        time.sleep(0.3)
        print(f"row {number} " + "x" * 100)
        print(f"passed over {number}", file=sys.stderr)
        work.advance()
print("done", file=sys.stderr)
"""


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(progress, "TICK", 1e6)  # only the test updates
        monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: self.now))

    def wait(self, board: Board | None, seconds: int) -> None:
        assert board is not None
        for _ in range(seconds):
            self.now += 1
            board.tick()


def test_track_yields_the_items():
    assert list(track(["a", "b"], "doing")) == ["a", "b"]
    with shown():
        assert list(track([], "doing")) == []
        assert list(track({"a": 1, "b": 2}, "doing")) == ["a", "b"]


def test_a_line_per_minute_has_the_time_left(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Nothing for ten seconds, then one line, then one per minute; standard output stays clean."""
    clock = Clock(monkeypatch)
    with shown(), Work("scoring", 40) as work:
        clock.wait(work.board, 9)
        assert capsys.readouterr().err == ""
        for _ in range(10):
            clock.wait(work.board, 10)
            work.advance()
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == ["scoring: 0 of 40", "scoring: 6 of 40, 6:30 left"]  # 69 s for six, and one since then


def test_a_part_that_takes_longer_changes_the_time_left(monkeypatch: pytest.MonkeyPatch):
    clock = Clock(monkeypatch)
    with shown(), Work("measuring", 4) as work:
        clock.now += 10
        work.advance()
        assert work.left() == "0:30 left"
        clock.now += 10
        assert work.left() == "0:20 left"
        clock.now += 20  # 40 s, and two are done at best
        assert work.left() == "1:20 left"
        work.advance()
        clock.now += 30  # 10 s longer than the two before took on average
        assert work.left() == "0:30 left"  # two of 25 s, less the usual 20 s of the first


def test_work_of_unknown_length_shows_the_time_so_far(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    clock, doing = Clock(monkeypatch), "compiling " + "x" * 100
    work = Work(doing)
    clock.now += 1000  # it has not begun
    with shown(), work:
        clock.wait(work.board, 80)
    assert capsys.readouterr().err.splitlines() == [f"{doing}: 0:10 so far", f"{doing}: 1:10 so far"]


def test_nested_work_is_shown_after_the_outer_work(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    clock = Clock(monkeypatch)
    with shown(), Work("runs", 3) as outer:
        outer.advance()
        with Work("scoring", 7):
            clock.wait(outer.board, 10)
        clock.wait(outer.board, 60)
    first, second = capsys.readouterr().err.splitlines()
    assert first.endswith("; scoring: 0 of 7")
    assert second.startswith("runs: 1 of 3")
    assert ";" not in second


def test_of_a_work_with_one_part_only_the_part_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    clock = Clock(monkeypatch)
    with shown(), Work("models", 1) as outer:
        with Work("scoring", 7):
            clock.wait(outer.board, 10)
        clock.wait(outer.board, 60)
    assert capsys.readouterr().err.splitlines() == ["scoring: 0 of 7", "models: 0 of 1"]


def test_many_short_works_are_shown_together(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """But a line is not spent on one that is over in a moment."""
    clock = Clock(monkeypatch)
    with shown():
        for number in range(4):
            with Work(f"timing {number}") as work:
                clock.wait(work.board, 4)
        clock.now += 100
        with Work("reading") as work:
            clock.wait(work.board, 0)
    assert capsys.readouterr().err.splitlines() == ["timing 2: 0:02 so far"]


def test_bytes_of_an_earlier_download_do_not_count_for_the_speed(monkeypatch: pytest.MonkeyPatch):
    clock = Clock(monkeypatch)
    with shown(), Bytes("downloading", 100e6, 40e6) as work:
        assert work.line() == "downloading: 40.0 of 100.0 MB"
        clock.now += 10
        work.advance(20e6)
        assert work.line() == "downloading: 60.0 of 100.0 MB, 0:20 left"


@pytest.mark.parametrize("show", [True, False])
def test_nothing_is_shown_outside_of_shown(
    show: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """No text and no thread in a user's own program, or inside `shown(False)`."""
    monkeypatch.setattr(progress, "FIRST", 0.0)
    monkeypatch.setattr(progress, "SHORT", 0.0)
    monkeypatch.setattr(progress, "TICK", 0.01)
    started = []
    monkeypatch.setattr(threading.Thread, "start", lambda thread: started.append(thread))
    with shown(show), Work("scoring") as work:
        assert (work.board is not None) == show
    with shown(), shown(show), Work("scoring"), Work("predicting"):
        pass
    assert len(started) == (2 if show else 0)  # one thread for all works
    assert all(thread.daemon for thread in started)  # it does not keep the process alive
    list(track(range(3), "scoring"))
    assert len(started) == (2 if show else 0)
    assert capsys.readouterr() == ("", "")


def test_a_forked_process_can_take_the_lock():
    """Else it would wait for ever for a thread that only its parent has."""
    writing = threading.Event()

    def write() -> None:
        with progress._lock:
            writing.set()
            time.sleep(0.3)

    thread = threading.Thread(target=write)
    thread.start()
    writing.wait()
    child = os.fork()
    if child == 0:
        free = list[bool]()
        looking = threading.Thread(target=lambda: free.append(progress._lock.acquire(timeout=5)))
        looking.start()
        looking.join()
        os._exit(0 if free == [True] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    thread.join()


def test_a_long_step_is_shown_while_it_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Also while a library is silenced by another standard error."""
    monkeypatch.setattr(progress, "FIRST", 0.05)
    monkeypatch.setattr(progress, "SHORT", 0.0)
    monkeypatch.setattr(progress, "TICK", 0.01)
    with shown():
        with Work("reading"):
            pass  # the next work is shown as well
        with Work("exporting"), redirect_stderr(io.StringIO()) as void:
            time.sleep(0.3)
    assert capsys.readouterr().err == "exporting: 0:00 so far\n"
    assert void.getvalue() == ""


def test_abandoned_work_disappears(monkeypatch: pytest.MonkeyPatch):
    """A loop that is left by an error keeps its iterator until the error is gone."""
    clock = Clock(monkeypatch)
    items = track(range(3), "counting")
    with shown():
        next(items)
        board = progress._board.get()
        assert board is not None
        assert len(board.works) == 1
    clock.wait(board, 20)
    assert board.works == []
    assert board.ended.is_set()  # nobody looks any more
    items.close()  # type: ignore[attr-defined]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def lines(self) -> list[str]:
        """What it shows: the cursor goes back, lines are erased and written over."""
        lines, row, column = [""], 0, 0
        for up, erase, other, letter in re.findall(
            r"\x1b\[(?:(\d+)A|(2K)|(\??[\d;]*[a-zA-Z]))|([^\x1b])", self.getvalue()
        ):
            row -= int(up or 0)
            if letter == "\n":
                row, column = row + 1, 0
                lines += [""] * (row == len(lines))
            elif letter == "\r":
                column = 0
            elif erase:
                lines[row] = ""
            elif not up and not other:
                lines[row] = lines[row][:column].ljust(column) + letter + lines[row][column + 1 :]
                column += 1
        return "\n".join(line.rstrip() for line in lines).rstrip().splitlines()


def test_bars_on_a_terminal_come_and_go(monkeypatch: pytest.MonkeyPatch):
    clock, terminal = Clock(monkeypatch), Terminal()
    for name, value in (("TERM", "xterm"), ("COLUMNS", "80")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(sys, "stdout", terminal)
    with shown():
        with Work("compiling"), Work("scoring", 40) as work:
            assert work.board is not None
            clock.now += 0.75
            work.board.tick()
            assert terminal.lines() == []
            clock.now += 0.25
            work.advance(10)
            work.board.tick()
            first, second = terminal.lines()
            assert first == "compiling " + 30 * " " + " 0:01 so far"
            assert second == "scoring   " + "━" * 8 + 22 * " " + " 10 of 40  0:03 left"
            print("a row, ", end="")
            work.board.tick()
            assert terminal.lines() == ["a row,"]  # no bar behind it
            sys.stdout.write("its end\n")
            work.board.tick()
            print("an error", file=sys.stderr, flush=True)
            assert terminal.lines() == (said := ["a row, its end", "an error"])
            work.board.tick()
            work.board.say("a line")
            work.board.tick()
            assert [terminal.lines()[place] for place in (0, 1, 2, 4)] == [*said, "a line", second]
        assert terminal.lines() == [*said, "a line"]
        assert sys.stdout is sys.stderr is terminal
        monkeypatch.setattr(sys, "stdout", io.StringIO())  # which does not keep the bar away
        with Work("exporting to " + "x" * 100) as work:
            print("half a row", end="")
            clock.wait(work.board, 1)
            assert terminal.lines()[3:] == ["exporting to " + "x" * 66, "0:01 so far"]  # within 80 columns


@pytest.mark.parametrize("piped", [True, False])
def test_bars_do_not_alter_what_is_printed(piped: bool):
    """Output appears above the bars, unchanged, on the stream it was written to."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", TERMINAL, progress.__file__],
        stdout=subprocess.PIPE if piped else slave,
        stderr=slave,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "80"},
    )
    os.close(slave)
    seen = b""
    while select.select([master], [], [], 30)[0]:
        try:
            seen += os.read(master, 4096)
        except OSError:  # everybody has closed it
            break
    rows = [f"row {number} " + "x" * 100 for number in range(4)]
    if process.stdout is not None:
        assert process.stdout.read().decode().splitlines() == rows
    assert process.wait(30) == 0
    os.close(master)
    text = seen.decode()
    assert "2 of 4" in text
    assert "0:00 left" in text
    for row in [] if piped else rows:
        assert f"{row}\r\n" in text
    for number in range(4):
        assert f"passed over {number}\r\n" in text
    assert "\x1b[2K" in text  # it is erased
    assert text.endswith("done\r\n")
