"""Start of the command: its time, Ctrl-C while it imports, SIGTERM later."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import mixmo
from mixmo.cli.app import main


@pytest.fixture
def interrupted(tmp_path: Path) -> dict[str, str]:
    """An environment whose PyTorch is interrupted as it is imported, and takes no notice."""
    torch = tmp_path / "torch" / "__init__.py"
    torch.parent.mkdir()
    torch.write_text(
        "import signal\ntry:\n    signal.raise_signal(signal.SIGINT)\nexcept KeyboardInterrupt as e:\n"
        "    raise ImportError('no torch') from e\n"
    )
    source = Path(mixmo.__file__).parents[1]
    return {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{source}"}


def ended(env: dict[str, str], *arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, *arguments],
        env=env,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=heed,
    )
    return done.returncode, done.stderr


def heed() -> None:
    """Ctrl-C counts, also where a shell has it ignored for background jobs."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize("words", [[], ["--help"], ["help"], ["--version"], ["--plugin", "a.py", "--help"]])
def test_help_and_version_start_fast_and_without_torch(words: list[str]) -> None:
    script = (
        "import resource, sys; from mixmo.cli.app import main\n"
        f"assert main({words}) == 0\n"
        "assert not {'torch', 'numpy', 'rich', 'yaml'} & set(sys.modules)\n"
        "used = resource.getrusage(resource.RUSAGE_SELF); print(used.ru_utime + used.ru_stime, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert float(done.stderr) < 0.4  # seconds of CPU; about 0.07


def test_ctrl_c_during_imports_ends_with_one_line(interrupted: dict[str, str], tmp_path: Path):
    script = tmp_path / "mixmo"
    script.write_text("from mixmo.__main__ import command\ncommand()\n")
    for arguments in (["-m", "mixmo", "list"], [str(script), "list"]):
        assert ended(interrupted, *arguments) == (130, "mixmo: interrupted\n")
    assert ended({**interrupted, "RANK": "1"}, "-m", "mixmo", "list") == (130, "")  # one process of several prints it


def test_ctrl_c_before_the_command_is_known_ends_with_one_line(interrupted: dict[str, str], tmp_path: Path):
    """In the first imports, those of the standard library."""
    shutil.copy(tmp_path / "torch" / "__init__.py", tmp_path / "difflib.py")
    assert ended(interrupted, "-m", "mixmo", "list") == (130, "mixmo: interrupted\n")


def test_ctrl_c_during_imports_is_left_to_programs_that_import_the_package(interrupted: dict[str, str]):
    status, said = ended(interrupted, "-c", "import mixmo.models")
    assert status == 1
    assert "ImportError: no torch" in said


def test_ctrl_c_later_ends_with_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def interrupt(_: list[str]) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("mixmo.cli.app.run", interrupt)
    for rank, said in (("0", "mixmo: interrupted\n"), ("1", "")):
        monkeypatch.setenv("RANK", rank)
        assert main(["list"]) == 130
        assert capsys.readouterr().err == said


def test_sigterm_ends_like_ctrl_c(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    left = []

    def terminate(_: list[str]) -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            left.append("tidily")

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr("mixmo.cli.app.run", terminate)
    assert main(["list"]) == 130
    assert capsys.readouterr().err == "mixmo: interrupted\n"
    assert left == ["tidily"]
    assert signal.getsignal(signal.SIGTERM) is before


def test_ignored_sigterm_stays_ignored(monkeypatch: pytest.MonkeyPatch):
    def ignored(_: list[str]) -> None:
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr("mixmo.cli.app.run", ignored)
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        assert main(["list"]) == 0
    finally:
        signal.signal(signal.SIGTERM, before)
