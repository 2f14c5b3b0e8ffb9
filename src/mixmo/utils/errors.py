"""Errors for users, and the checks of arguments that several rooms share."""

import math
import os
from collections.abc import Iterable
from difflib import get_close_matches
from numbers import Integral, Real
from pathlib import Path

from mixmo.utils.text import printable, shortened

LARGEST = 2**63 - 1  # number that PyTorch can hold
CAUSE = 500  # characters of another error's message
MANY = 60  # names that an error lists; of more, three


class UserError(ValueError):
    """Bad input: the message says what is wrong, where, and what to do. The command line prints it and exits with 2."""


def quoted(value: object) -> str:
    """Return the repr of a value on one line, shortened: it may come from an untrusted file.

    >>> print(quoted("a\\nb"), quoted("a" * 10**6)[-29:], quoted(10**5000))
    'a\\nb' aaa... (1,000,002 characters) an int with too many digits
    """
    try:
        text = repr(value)
    except ValueError:
        return f"an {type(value).__name__} with too many digits"
    return shortened(" ".join(text.split()) if "\n" in text else text)  # a tensor's has several lines


def check_whole(name: str, value: object, least: int = 1, most: int = LARGEST) -> None:
    """Check that an argument is a whole number, at least `least`, and at most `most`.

    >>> check_whole("members", 2.5)
    Traceback (most recent call last):
    mixmo.utils.errors.UserError: members = 2.5; give a whole number, at least 1
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or not least <= int(value) <= most:
        limit = "" if not isinstance(value, Integral) or int(value) <= most else " and below 2^63"
        limit = limit if most == LARGEST else f" and at most {most:,}"
        raise UserError(f"{name} = {quoted(value)}; give a whole number, at least {least}{limit}")


def check_number(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, Real) or math.isnan(value):
        raise UserError(f"{name} = {quoted(value)}; give a number")


def check_path(name: str, value: str | os.PathLike[str]) -> Path:
    """Return an argument as a path, in which a leading ~ is the home folder."""
    if not isinstance(value, str | os.PathLike) or value == "":
        raise UserError(f"{name} = {quoted(value)}; give a path")
    return Path(value).expanduser()


def check_readable(path: Path) -> None:
    """Raise an error for a name that is not UTF-8: safetensors could write the file, but not read it again."""
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        raise UserError(f"the name of {path} is not UTF-8; rename the folder or the file") from error


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, printable and shortened; its type if it has none.

    >>> first_line(RuntimeError("shapes differ\\nat frame 0")), first_line(AssertionError())
    ('shapes differ', 'AssertionError')
    """
    return shortened(printable((str(error).strip() or type(error).__name__).splitlines()[0]), CAUSE)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that `name` is a misspelling of, if any.

    >>> nearest("--batchsize", ["--batch-size", "--epochs"]), nearest("--optimizer", ["--compile", "--precision"])
    ('--batch-size', None)
    """
    plain = {other.strip("-").replace("_", "-"): other for other in known}
    near = get_close_matches(name.strip("-").replace("_", "-"), plain, n=1, cutoff=0.66)
    return plain[near[0]] if near else None


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """Return the error for an unknown name, which suggests a near miss.

    >>> print(unknown("mask", "cutt", ["cut", "cow"]))
    unknown mask 'cutt'; did you mean 'cut'? There are: cow, cut
    """
    names = sorted(known)
    near = nearest(str(name), names)
    hint = f"did you mean '{near}'? There" if near else "there"
    listed = f" {len(names)}, such as {', '.join(names[:3])}" if len(names) > MANY else f": {', '.join(names)}"
    return UserError(f"unknown {kind} {quoted(str(name))}; {hint} are{listed}")
