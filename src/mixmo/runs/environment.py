"""The software and hardware that a run was made with, for environment.json."""

import platform
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from mixmo._version import __version__


def environment(device: torch.device) -> dict[str, Any]:
    """Return versions, commit, device, processor and threads: no path and no host name."""
    commit = None
    with suppress(OSError):  # git is not installed
        if _git("ls-files", "--error-unmatch", Path(__file__).name):  # else installed inside another project
            commit = _git("rev-parse", "HEAD") or None
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {
        "mixmo": __version__,
        "commit": commit,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "device": device.type,
        "device_name": name,
        "cpu": _cpu(),
        "threads": torch.get_num_threads(),
        "platform": sys.platform,
    }


def _cpu() -> str:
    """Return the model of the processor and its vector instructions, which decide the last bits of a sum."""
    model = platform.machine()
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        model = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return f"{model}, {torch.backends.cpu.get_cpu_capability()}"


def _git(*words: str) -> str:
    command = ["git", "-C", str(Path(__file__).parent), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
