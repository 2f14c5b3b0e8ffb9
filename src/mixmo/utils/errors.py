"""What a user did wrong, said in one sentence."""

import os
from collections.abc import Iterable
from difflib import get_close_matches
from numbers import Integral, Real
from pathlib import Path

MANY = 60  # names a sentence can still hold
MOST_MEMBERS = 1000  # hundreds of times what has been trained


class UserError(ValueError):
    """Bad input: the message says what was wrong, where, what to do. The command line prints it and exits with 2."""


def check_whole(name: str, value: object, least: int = 1) -> None:
    """Refuses what is no whole number, or one below `least`.

    >>> check_whole("members", 2.5)
    Traceback (most recent call last):
    mixmo.errors.UserError: members = 2.5; give a whole number, at least 1
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise UserError(f"{name} = {value!r}; give a whole number, at least {least}")


def check_members(members: int) -> None:
    """Refuses what is no number of members, or hopelessly many."""
    check_whole("members", members)
    if members > MOST_MEMBERS:
        raise UserError(f"members = {members}; take at most {MOST_MEMBERS}, each has a first convolution and a head")


def check_number(name: str, value: object) -> None:
    """Refuses what is no real number, such as a text that holds one."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise UserError(f"{name} = {value!r}; give a number")


def check_path(name: str, value: str | os.PathLike[str]) -> Path:
    """The path, from the home folder where it begins with ~, or a sentence where it is none."""
    if not isinstance(value, str | os.PathLike) or value == "" or "\0" in str(value):
        raise UserError(f"{name} = {value!r}; give a path")
    try:
        path = Path(value).expanduser()
        path.exists()
    except (OSError, ValueError, RuntimeError) as error:  # too long, a character that no name has, nobody's home
        reason = getattr(error, "strerror", None) or first_line(error)
        raise UserError(f"{name} = {str(value)[:40]!r} cannot be looked at ({reason}); give another path") from error
    return path


def first_line(error: BaseException) -> str:
    """What an error of a library says, in one line; its type where it says nothing.

    >>> first_line(RuntimeError("shapes differ\\nat frame 0")), first_line(AssertionError())
    ('shapes differ', 'AssertionError')
    """
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that `name` is a misspelling of, if any.

    >>> nearest("--batchsize", ["--batch-size", "--epochs"]), nearest("--optimizer", ["--compile", "--precision"])
    ('--batch-size', None)
    """
    plain = {other.strip("-").replace("_", "-"): other for other in known}
    near = get_close_matches(name.strip("-").replace("_", "-"), plain, n=1, cutoff=0.66)
    return plain[near[0]] if near else None


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """The error for a name that nobody registered, with the nearest one that exists.

    >>> print(unknown("mask", "cutt", ["cut", "cow"]))
    unknown mask 'cutt'; did you mean 'cut'? There are: cow, cut
    """
    names = sorted(known)
    near = nearest(str(name), names)
    hint = f"did you mean '{near}'? There" if near else "there"
    if len(names) > MANY:
        return UserError(f"unknown {kind} '{name}'; {hint} are {len(names)}, such as {', '.join(names[:3])}")
    return UserError(f"unknown {kind} '{name}'; {hint} are: {', '.join(names)}")
