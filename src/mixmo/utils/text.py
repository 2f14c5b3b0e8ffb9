"""Make untrusted text, such as paths and class names, safe to print."""

import unicodedata

QUOTED = 200  # characters of a value that an error message quotes


def printable(text: str) -> str:
    """Return a text in which terminal control characters and bidirectional marks are escaped.

    >>> printable("a\\x1b[31mb\\u202e"), printable("Kälte, 冬")
    ('a\\\\x1b[31mb\\\\u202e', 'Kälte, 冬')
    """
    return "".join(_spelled(each) if _steers(each) else each for each in text)


def printable_lines(text: str) -> str:
    """Return a text in which every line is `printable`."""
    return "\n".join(map(printable, text.split("\n")))


def shortened(text: str, most: int = QUOTED) -> str:
    """Return a text shortened so that it can be quoted in an error message.

    >>> shortened("4"), shortened(5000 * "9")[-25:]
    ('4', '99... (5,000 characters)')
    """
    return text if len(text) <= most else f"{text[: most - 3]}... ({len(text):,} characters)"


def _steers(character: str) -> bool:
    """Whether it is a control or format character, or half of a surrogate pair."""
    return unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp") and character != "\u200d"


def _spelled(character: str) -> str:
    return character.encode("unicode_escape").decode()


def duration(seconds: float) -> str:
    """Return a time with its unit.

    >>> duration(40), duration(90), duration(5000), duration(1e6), duration(1e8)
    ('40 s', '1.5 min', '1.4 h', '11.6 days', '3.2 years')
    """
    for unit, length, least in (("years", 31_536_000, 1), ("days", 86_400, 2), ("h", 3_600, 1), ("min", 60, 1)):
        if seconds >= least * length:
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds:.0f} s"
