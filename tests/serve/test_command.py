"""The command `mixmo serve`: starts, stops, and what it refuses."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from mixmo.cli.app import main

Said = Callable[..., str]


def test_it_serves_a_network_until_it_is_terminated(
    tmp_path: Path, net: object, draw_file: Callable[..., bytes]
) -> None:
    import mixmo

    mixmo.save_pretrained(net, tmp_path / "saved")  # type: ignore[arg-type]
    command = [sys.executable, "-m", "mixmo", "serve", str(tmp_path / "saved"), "--port", "0"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("serving saved (PyTorch, ")
        with httpx.Client(base_url=line.split()[-1]) as client:
            assert client.post("/predict", files={"files": draw_file(0)}).status_code == 200
            assert str(tmp_path) not in client.get("/model").text
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=15)
    assert process.returncode == 0, err
    assert out == ""
    assert "Traceback" not in err


def test_beyond_this_machine_a_token_is_needed(said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MIXMO_TOKEN", raising=False)
    assert "MIXMO_TOKEN" in said("serve", "--host", "0.0.0.0")
    assert "MIXMO_TOKEN" in said("serve", "--host", "::")
    monkeypatch.setenv("MIXMO_TOKEN", "short")
    assert "16" in said("serve", "--host", "0.0.0.0")


def test_a_port_that_is_taken_is_an_error(said: Said) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert "--port" in said("serve", "--port", taken.getsockname()[1])
    assert "--port" in said("serve", "--port", "99999")


def test_arguments_are_checked(said: Said, tmp_path: Path) -> None:
    assert "max_images" in said("serve", "--max-images", "0")
    assert "does not exist" in said("serve", tmp_path / "no.onnx", "--port", "0")
    assert "calibrate the network before exporting" in said(
        "serve", tmp_path / "no.onnx", "--port", "0", "--level", "0.9"
    )


def test_without_the_extra_the_error_says_what_to_install(said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("mixmo.serve.")]:
        if name != "mixmo.serve.settings":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "fastapi", None)
    assert "mixmo[serve]" in said("serve")


def test_help_names_the_shipped_network(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--help"]) == 0
    assert "cifar100/cut-mixmo-wrn28-4" in capsys.readouterr().out.replace("\n", "")
