"""The README runs as printed, fits a first page, and its table is that of the runs in results/."""

import json
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


def test_table_has_the_scores_of_the_last_epochs() -> None:
    rows = [[cell.strip() for cell in line[1:-1].split("|")] for line in README.splitlines() if line.startswith("| ")][
        1:
    ]
    for row, folder in zip(rows, ("vanilla-b1-batch64", "cutmix-b1-batch64", "cut-mixmo-b4-ghost-seed1"), strict=False):
        scores = json.loads((ROOT / "results" / "cifar100-wrn28-4" / folder / "scores.json").read_text())
        last = scores["last"]["ensemble"]
        assert row[1:4] == [f"{100 * last['top1']:.2f}", f"{last['nll']:.3f}", f"{last['ece']:.3f}"]
    pair = next(
        line for line in (ROOT / "results" / "README.md").read_text().splitlines() if "vanilla with ghosts" in line
    )
    assert len(rows) == 4
    assert all(f"| {number} |" in pair for number in rows[3][1:4])
