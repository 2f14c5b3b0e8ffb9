"""The parser of a command: jsonargparse's, but help and faults are in our words.

How jsonargparse words them is no part of its interface, and changes. So both are made of what the arguments are: their
types, defaults and whether they must be given; and a fault is looked for in the words of the command line.
"""

from argparse import SUPPRESS, Action, ArgumentError
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import jsonargparse
import yaml
from jsonargparse import ArgumentParser, DefaultHelpFormatter

jsonargparse.set_parsing_settings(docstring_parse_attribute_docstrings=True)


class Parser(ArgumentParser):
    """That of one command, which remembers of its arguments what types they have and which must be given."""

    def __init__(self, **settings: Any) -> None:
        self.hints: dict[str, Any] = {}
        self.needed: list[Action] = []
        formatter: Any = partial(Formatter, self)
        super().__init__(formatter_class=formatter, **settings)

    def add_argument(self, *names: str, **settings: Any) -> Action:
        action: Action = super().add_argument(*names, **settings)
        if "type" in settings:
            self.hints[action.dest] = settings["type"]
        positional = not action.option_strings and settings.get("nargs") not in ("?", "*")
        if positional or settings.get("required"):
            self.needed.append(action)
        return action

    def add_class_arguments(self, theclass: type, *names: str, **settings: Any) -> list[str]:
        added: list[str] = super().add_class_arguments(theclass, *names, **settings)
        self.hints |= get_type_hints(theclass)  # without the ranges that they may be annotated with
        return added


class Formatter(DefaultHelpFormatter):
    """Help that tells of each argument whether it must be given, its type and its default."""

    def __init__(self, into: Parser, *given: Any, **settings: Any) -> None:
        super().__init__(*given, **settings)  # type: ignore[no-untyped-call]
        self.into = into

    def _expand_help(self, action: Action) -> str:
        notes, hint = ["required"] if action in self.into.needed else [], self.into.hints.get(action.dest)
        if hint is not None:
            notes.append(kind(hint) if " " in kind(hint) else f"type: {kind(hint)}")
        if action.option_strings and action.default not in (None, SUPPRESS):
            notes.append(f"default: {action.default}")
        return f"{action.help} ({', '.join(notes)})" if notes else str(action.help)


def fault(into: Parser, arguments: Sequence[str]) -> str | None:
    """What is wrong with a command line, in our words; None where that is neither a value nor one that lacks."""
    given, free = assigned(into, arguments)
    for dest, value, place in (each for action, values in given for each in stated(action, values)):
        hint = into.hints.get(dest)
        if hint is not None and not fits(value, hint):
            written = " ".join(str(value).split())
            number = kind(hint) == "float" and written in ("inf", "nan")
            remedy = f"; as a number it is written .{written}" if number else ""
            return f"{dest}{place}: expected {kind(hint)}, got {written or 'nothing'}{remedy}"
    there = [action for action, _ in given]
    positional = [action.dest for action in into.needed if not action.option_strings]
    options = [action.option_strings[0] for action in into.needed if action.option_strings and action not in there]
    lacking = positional[len(free) :] + options
    return f"the following arguments are required: {', '.join(lacking)}" if lacking else None


def assigned(into: Parser, arguments: Sequence[str]) -> tuple[list[tuple[Action, list[str]]], list[str]]:
    """The options that are given, each with its values, and the words that belong to none."""
    options = {string: action for action in into._actions for string in action.option_strings}
    given, free, words = list[tuple[Action, list[str]]](), list[str](), list(arguments)
    while words:
        option, sign, value = (word := words.pop(0)).partition("=")
        if word == "--":
            return given, free + words
        if option not in options:
            free.append(word)
            continue
        action, values = options[option], [value] if sign else []
        most = 1 if action.nargs is None else action.nargs if isinstance(action.nargs, int) else len(words)
        while words and len(values) < most and words[0].partition("=")[0] not in options:
            values.append(words.pop(0))
        given.append((action, values))
    return given, free


def stated(action: Action, values: Sequence[str]) -> list[tuple[str, Any, str]]:
    """What an option sets to what, and where: itself, or fields in a YAML file, which `check_file` has read before."""
    if action.dest != "config":
        return [(action.dest, value, "") for value in values]
    files = [(file, yaml.safe_load(Path(file).read_text(encoding="utf-8"))) for file in values]
    return [(field, value, f" in {file}") for file, fields in files for field, value in fields.items()]


def fits(value: Any, hint: Any) -> bool:
    """Whether jsonargparse takes a value for one of this type.

    >>> fits("4", int), fits("4.5", int), fits("null", float | None), fits("[0.5, 1]", tuple[float, ...])
    (True, False, True, True)
    """
    one = ArgumentParser(exit_on_error=False)
    one.add_argument("--value", type=hint)
    try:
        one.parse_object({"value": value})
    except ArgumentError:
        return False
    return True


def kind(hint: Any) -> str:
    """A type as readers call it.

    >>> kind(float | None), kind(Path), kind(Literal["last", "best"] | None), kind(tuple[float, ...])
    ('float', 'path', 'last or best', 'a list such as [0.5, 0.75]')
    """
    parts = get_args(hint)
    if NoneType in parts:
        return kind(next(part for part in parts if part is not NoneType))
    if get_origin(hint) is Literal:
        return " or ".join(map(str, parts))
    return "a list such as [0.5, 0.75]" if get_origin(hint) is tuple else str(hint.__name__).lower()
