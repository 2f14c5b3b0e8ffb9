"""Arrays in .npy files, memory-mapped."""

from pathlib import Path

import numpy as np

from mixmo.utils.errors import first_line


def mapped(path: Path) -> np.ndarray:
    """Map an array copy-on-write, as torch needs writable memory; raise a ValueError if the file is damaged."""
    try:
        array: np.ndarray = np.load(path, mmap_mode="c", allow_pickle=False)
    except OSError:
        raise
    except Exception as error:  # numpy reads the header as a piece of Python: a SyntaxError or nearly anything
        raise ValueError(first_line(error)) from error
    return array
