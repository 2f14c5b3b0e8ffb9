"""Files of strangers are read, or rejected in a sentence: a hundred of each kind here, 10,000 by `make fuzz`."""

import shutil
from pathlib import Path

import pytest

from faults.fuzz import fuzz, outcome
from faults.targets import TARGETS, Target, make
from mixmo.utils.errors import UserError

CORPUS = sorted(path for path in Path(__file__).with_name("corpus").glob("*/*") if path.is_file())


@pytest.mark.parametrize("name", TARGETS)
def test_damaged_files_are_read_or_rejected(name: str):
    result = fuzz(TARGETS[name], 100 // TARGETS[name].share, seed=1)
    assert result.findings == []
    assert result.read + result.rejected == 100 // TARGETS[name].share
    assert result.rejected > 0


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_what_fuzzing_found_is_rejected(tmp_path: Path, path: Path):
    """corpus/TARGET/FILE or FILE_2 and so on: FILE was damaged like this."""
    target = TARGETS[path.parent.name]
    name = f"{path.stem.partition('_')[0]}{path.suffix}"
    (file,) = (file for file in make(target, tmp_path) if file.name == name)
    shutil.copyfile(path, file)
    assert outcome(target, tmp_path, file) == "rejected"


def test_a_message_of_several_lines_is_a_finding(tmp_path: Path):
    """Also one that names the folder, whose own name may have any characters."""
    for message, ending in (
        (f"{tmp_path}/a is damaged\nand more", "no sentence"),
        (f"{tmp_path}/a is damaged: \x1b[31m", "no sentence"),
        ("", "no sentence"),
        (f"{tmp_path}/a is damaged", "rejected"),
    ):

        def read(folder: Path, file: Path, message: str = message) -> None:
            raise UserError(message)

        assert outcome(Target(read, read), tmp_path, tmp_path / "a").startswith(ending)
