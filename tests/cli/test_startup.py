"""Ctrl-C while the command still imports; SIGTERM later."""

import os
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


def test_the_command_ends_with_a_line(interrupted: dict[str, str], tmp_path: Path):
    script = tmp_path / "mixmo"
    script.write_text("from mixmo.cli.app import command\ncommand()\n")
    for arguments in (["-m", "mixmo", "list"], [str(script), "list"]):
        assert ended(interrupted, *arguments) == (130, "mixmo: interrupted\n")
    assert ended({**interrupted, "RANK": "1"}, "-m", "mixmo", "list") == (130, "")  # one of several processes speaks


def test_a_program_that_imports_the_package_gets_the_error_of_the_import(interrupted: dict[str, str]):
    status, said = ended(interrupted, "-c", "import mixmo; mixmo.loss")
    assert status == 1
    assert "ImportError: no torch" in said


def test_the_command_ends_alike_later(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def interrupt(_: list[str]) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("mixmo.cli.app.run", interrupt)
    for rank, said in (("0", "mixmo: interrupted\n"), ("1", "")):
        monkeypatch.setenv("RANK", rank)
        assert main(["list"]) == 130
        assert capsys.readouterr().err == said


def test_sigterm_is_taken_like_ctrl_c(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """As `timeout` sends it: what is half-written is removed on the way out."""
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


def test_sigterm_that_is_ignored_stays_so(monkeypatch: pytest.MonkeyPatch):
    def ignored(_: list[str]) -> int:
        signal.raise_signal(signal.SIGTERM)
        return 0

    monkeypatch.setattr("mixmo.cli.app.run", ignored)
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        assert main(["list"]) == 0
    finally:
        signal.signal(signal.SIGTERM, before)
