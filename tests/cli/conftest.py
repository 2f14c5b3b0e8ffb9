"""What a command says that refuses its input."""

from collections.abc import Callable

import pytest

from mixmo.cli import main


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """The one sentence of a refused command."""

    def said(*arguments: object) -> str:
        capsys.readouterr()
        assert main([str(argument) for argument in arguments]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("mixmo: ")
        assert err.count("\n") == 1
        return err

    return said
