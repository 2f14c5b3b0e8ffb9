"""The values that a field or an option may take: declared with it, checked by one function."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args, get_origin

from mixmo.utils.errors import LARGEST, UserError, quoted, unknown


@dataclass(frozen=True)
class Range:
    """An interval of finite numbers; a round bracket excludes an end.

    >>> 0.0 in above(0), 1 in Range(0, 1), 1 in Range(0, 1, "[)"), math.inf in at_least(0)
    (False, True, False, False)
    >>> print(at_least(1), above(0), Range(0, 1, "(]"), sep="; ")
    >= 1; > 0; in (0, 1]
    """

    low: float
    high: float = math.inf
    ends: Literal["[]", "[)", "(]", "()"] = "[]"

    def __contains__(self, value: float) -> bool:
        excluded = [end for end, bracket in zip((self.low, self.high), self.ends, strict=True) if bracket in "()"]
        return self.low <= value <= self.high and value not in (*excluded, math.inf)

    def __str__(self) -> str:
        if self.high < math.inf:
            return f"in {self.ends[0]}{self.low:g}, {self.high:g}{self.ends[1]}"
        return f"{'>' if self.ends[0] == '(' else '>='} {self.low:g}"


def at_least(low: float) -> Range:
    return Range(low)


def above(low: float) -> Range:
    return Range(low, ends="(]")


PROBABILITY = Range(0, 1)
SHARE = Range(0, 1, "()")
PORT = Range(0, 65_535)


@dataclass(frozen=True, eq=False)
class OneOf:
    """A name from a registry, to which users may add; with `none`, also "none"; also names that match `others`.

    `forms` are those others in words, for error messages.
    """

    kind: str
    registry: Iterable[str]
    none: bool = False
    others: re.Pattern[str] | None = None
    forms: tuple[str, ...] = ()

    def names(self) -> list[str]:
        return ["none", *self.registry] if self.none else list(self.registry)


def check_field(name: str, value: object, hint: Any) -> None:
    """Raise an error that gives name, value and allowed values if the value has another type or is out of range.

    >>> check_field("lr", -1.0, Annotated[float, above(0)])
    Traceback (most recent call last):
    mixmo.utils.errors.UserError: lr = -1.0; it must be float > 0
    """
    kind, rules = _parts(hint)
    if not has_type(value, kind) or not within(value, hint):
        raise UserError(f"{name} = {quoted(value)}; it must be {allowed(hint)}{too_large(value)}")
    names = {
        rule.kind: [*rule.names(), *rule.forms]
        for rule in rules
        if isinstance(rule, OneOf) and not (rule.others and rule.others.fullmatch(str(value)))
    }
    if get_origin(kind) is Literal:
        names = {name: list(get_args(kind))}
    for what, known in names.items():
        if value not in known:
            raise unknown(what, str(value), known)


def within(value: object, hint: Any) -> bool:
    """Return whether all numbers of a value are in the ranges of its type hint; None is.

    >>> within(2**63, int), within(math.nan, float), within((0.5, 2), Annotated[tuple[float, ...], PROBABILITY])
    (False, False, False)
    """
    values = value if isinstance(value, tuple) else (value,)
    numbers = [each for each in values if isinstance(each, int | float)]
    held = all(abs(number) <= LARGEST or number == math.inf for number in numbers)
    ranges = [rule for rule in _parts(hint)[1] if isinstance(rule, Range)]
    return held and all(number in each for each in ranges for number in numbers)


def allowed(hint: Any) -> str:
    """Return the values of a type hint in words.

    >>> allowed(Annotated[float, above(0)]), allowed(int)
    ('float > 0', 'int')
    """
    kind, rules = _parts(hint)
    ranges = [str(rule) for rule in rules if isinstance(rule, Range)]
    return " ".join((kind.__name__ if isinstance(kind, type) else str(kind), *ranges))


def too_large(value: object) -> str:
    """Return the limit that a number exceeds, where PyTorch cannot represent it."""
    return " below 2^63" if isinstance(value, int | float) and LARGEST < abs(value) < math.inf else ""


def _parts(hint: Any) -> tuple[Any, list[Any]]:
    """Return the type and the rules of a hint."""
    kind, *rules = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    return kind, rules


def has_type(value: object, kind: Any) -> bool:
    """Return whether a value has the type of a field. An integer is a number too; a bool or NumPy number is not.

    >>> has_type(1, float), has_type(True, int), has_type(None, int | None), has_type((0.5, 1), tuple[float, ...])
    (True, False, True, True)
    """
    parts = get_args(kind)
    if get_origin(kind) is Literal:
        return type(value) is str
    if get_origin(kind) is tuple:
        return isinstance(value, tuple) and all(has_type(part, parts[0]) for part in value)
    if parts:
        return any(has_type(value, part) for part in parts)
    return type(value) in ((int, float) if kind is float else (kind,))  # the types that YAML can write
