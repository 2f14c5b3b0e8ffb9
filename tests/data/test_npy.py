from pathlib import Path

import numpy as np
import pytest

from mixmo.data.npy import mapped


def test_any_flipped_bit_of_the_header_is_a_value_error_of_one_line(tmp_path: Path):
    array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    path = tmp_path / "a.npy"
    np.save(path, array)
    assert np.array_equal(mapped(path), array)
    whole = path.read_bytes()
    said = []
    for place in range(128):
        for bit in range(8):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :])
            try:
                mapped(path)
            except ValueError as error:
                said.append(str(error))
    assert len(said) > 500
    assert not [text for text in said if "\n" in text]


def test_a_missing_file_is_an_os_error(tmp_path: Path):
    with pytest.raises(FileNotFoundError):
        mapped(tmp_path / "a.npy")
