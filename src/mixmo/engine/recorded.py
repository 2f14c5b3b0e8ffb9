"""What a rerun takes from environment.json: that file may be a stranger's, so it names nothing to import or to open."""

import os
import re
from typing import Any, NamedTuple, get_type_hints

import torch

from mixmo.engine.runtime import RECORDED, Runtime
from mixmo.recipes.fields import check_field
from mixmo.runs.directory import Run
from mixmo.utils.errors import UserError, check_whole, quoted, unknown

DEVICE = re.compile(r"[a-z]{1,20}")


class Recorded(NamedTuple):
    """How a run was made, as far as it may affect numbers."""

    device: str  # its type: cpu, cuda, ...
    threads: int
    options: dict[str, Any]  # of Runtime


def read_recorded(run: Run) -> Recorded:
    """Return the device, threads and options of a run.

    Raises:
        UserError: If environment.json has other options than a run records, or values that they cannot have.
    """
    network = run.open_networks()[0]
    found = network.read_environment()
    try:
        return Recorded(_device(found.get("device")), _threads(found.get("threads")), _options(found.get("options")))
    except UserError as error:
        raise UserError(f"{network.path / 'environment.json'}: {error}") from None


def _device(value: object) -> str:
    if not isinstance(value, str) or not DEVICE.fullmatch(value):
        raise UserError(f"device = {quoted(value)}; give the type of a device, such as cpu or cuda")
    return value


def _threads(value: Any) -> int:
    """Return the number of threads; no more than there are cores, or than this process has: PyTorch would crash."""
    check_whole("threads", value)
    return min(int(value), max(os.cpu_count() or 1, torch.get_num_threads()))


def _options(value: Any) -> dict[str, Any]:
    value = {} if value is None else value  # earlier versions recorded none
    if not isinstance(value, dict):
        raise UserError(f"options = {quoted(value)}; give an object with {', '.join(RECORDED)}")
    hints = get_type_hints(Runtime, include_extras=True)
    for name, option in value.items():
        if name not in RECORDED:
            raise unknown("option", name, RECORDED)
        check_field(name, option, hints[name])
    return value
