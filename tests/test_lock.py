"""requirements.lock has all packages of the tests, with hashes."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_every_dependency_is_locked_with_hashes() -> None:
    """`make lock` writes the file anew after a change of pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *(name for extra in project["optional-dependencies"].values() for name in extra),
    ]
    names = {re.split(r"[\[<>=;]", name)[0].lower().replace("_", "-") for name in wanted} - {"mixmo", "torch"}
    entries = re.findall(r"^(\S+)==\S+ (.*(?:\n    .*)*)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    assert names <= {name.partition("[")[0] for name, _ in entries}
    assert all("--hash=sha256:" in rest for _, rest in entries)
