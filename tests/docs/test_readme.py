"""The README runs as printed and fits a first page."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
STANDINS = """\
import torch
names = ["cat", "dog", "owl", "newt", "bee"]
loader = [(torch.randn(4, 3, 64, 64), torch.randint(0, 5, (4,))) for _ in range(2)]
"""


def test_python_block_runs_as_printed_in_a_fresh_process(tmp_path: Path) -> None:
    """Without the conftest: `import mixmo` alone must make timm importable wherever `make demo` works."""
    (code,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    (tmp_path / "block.py").write_text(code + f"assert prediction.members.shape == {(2, 4, 5)}\n")
    run = f"{STANDINS}exec(open('block.py').read())"
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", run], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] in {"cat", "dog", "owl", "newt", "bee"}


def test_first_page_is_short() -> None:
    assert len(README.splitlines()) <= 120
