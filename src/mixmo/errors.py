"""What a user did wrong, said in one sentence."""

from collections.abc import Iterable
from difflib import get_close_matches

MANY = 60  # names a sentence can still hold


class UserError(ValueError):
    """Bad input: the message says what was wrong, where, what to do. The command line prints it and exits with 2."""


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """The error for a name that nobody registered, with the nearest one that exists.

    >>> print(unknown("mask", "cutt", ["cut", "cow"]))
    unknown mask 'cutt'; did you mean 'cut'? There are: cow, cut
    """
    names = sorted(known)
    near = get_close_matches(name, names, n=1)
    hint = f"did you mean '{near[0]}'? " if near else ""
    if len(names) > MANY:
        return UserError(f"unknown {kind} '{name}'; {hint}There are {len(names)}, such as {', '.join(names[:3])}")
    return UserError(f"unknown {kind} '{name}'; {hint}There are: {', '.join(names)}")
