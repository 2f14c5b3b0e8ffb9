"""The README's Python runs as it is written there; its commands exist."""

import re
from pathlib import Path

import torch

from mixmo.cli import COMMANDS
from mixmo.recipes import named

README = (Path(__file__).resolve().parents[1] / "README.md").read_text()


def test_the_loop() -> None:
    """Two steps of the loop on random images."""
    (code,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    loader = [(torch.randn(4, 3, 32, 32), torch.randint(0, 100, (4,))) for _ in range(2)]
    names: dict[str, object] = {"loader": loader, "steps": 2}
    exec(code, names)
    probabilities = names["probabilities"]
    assert isinstance(probabilities, torch.Tensor)
    torch.testing.assert_close(probabilities.sum(-1), torch.ones(4))


def test_commands_and_recipes_exist() -> None:
    used = re.findall(r"^mixmo (\w+)(?: (\S+))?", README, flags=re.MULTILINE)
    assert used
    for command, first in used:
        assert command in COMMANDS
        if command in ("train", "show"):
            named(first)


def test_linked_files_exist() -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", README):
        assert (Path(__file__).resolve().parents[1] / link).exists(), link
