"""Options of commands that calibrate a network before they use it."""

from pathlib import Path
from typing import Annotated, Literal

from mixmo.cli.parser import Parser
from mixmo.recipes.fields import SHARE


def add_calibration(into: Parser, section: str | None = None) -> None:
    """Add --calibrate-on, --sets, --level and --risk, under a heading of the help if one is given."""
    into.add_argument(
        "--calibrate-on",
        type=Path,
        section=section,
        help="held-out images to calibrate with: a folder of class folders, or a CSV of path,label; by default the "
        "calibration saved with the model, or the validation images of the run",
    )
    into.add_argument("--sets", type=Literal["lac", "aps", "raps"], section=section, help="conformal method (lac)")
    into.add_argument(
        "--level",
        type=Annotated[float, SHARE],
        section=section,
        help="target coverage of the conformal prediction sets (0.9)",
    )
    into.add_argument("--risk", type=Annotated[float, SHARE], section=section, help="maximum selective risk (0.05)")
