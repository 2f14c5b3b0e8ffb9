"""Values and messages of others, which error messages quote, are one printable line."""

import torch

from mixmo.utils.errors import first_line, quoted


def test_a_quoted_value_is_one_printable_line():
    for value in (torch.zeros(40, 40), "a\nb\x1b[31m", 10**5000, ["x\u202e"]):
        assert quoted(value).isprintable()
        assert len(quoted(value)) < 300


def test_the_first_line_of_another_error_is_printable_and_short():
    assert first_line(ValueError("\x1b[1mbold\nmore")) == "\\x1b[1mbold"
    assert len(first_line(ValueError("a" * 10**6))) < 600
