"""environment.json names the commit of mixmo, and of no project around it."""

import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from mixmo.runs.environment import environment


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not there")
def test_commit_of_a_project_around_the_package_is_not_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the package is installed into a `.venv` inside a user's repository."""
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    (tmp_path / "runs.py").touch()
    for words in (["init", "-q"], ["add", "runs.py"], ["commit", "-qm", "theirs"]):
        subprocess.run([*git, *words], check=True)
    (tmp_path / "site-packages").mkdir()
    found = []
    for file in (tmp_path / "runs.py", tmp_path / "site-packages" / "runs.py"):
        monkeypatch.setattr("mixmo.runs.environment.__file__", str(file))
        found.append(environment(torch.device("cpu"))["commit"])
    assert len(found[0]) == 40
    assert found[1] is None


def test_commit_is_none_without_git(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert environment(torch.device("cpu"))["commit"] is None
