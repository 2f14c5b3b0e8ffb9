"""The parser of a command: argparse with type hints as types, options spelled with dashes, booleans as plain flags."""

import argparse
import ast
import inspect
import textwrap
from argparse import Action, ArgumentTypeError, BooleanOptionalAction
from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, NoReturn, get_args, get_origin, get_type_hints

from mixmo.recipes.fields import allowed, too_large, within
from mixmo.utils.errors import UserError, nearest
from mixmo.utils.text import shortened

LONGEST = 4_096  # characters of a value, as of a path
BOOLEANS = {"true": True, "false": False}
EPILOG = (
    "User-defined masks, pixel augmentations, networks, data sets and metrics: --plugin FILE.py (see `mixmo --help`)."
)


class Parser(argparse.ArgumentParser):
    """Parser of one command. Run it with `mixmo.cli.arguments.parse`."""

    def __init__(self, command: str, description: str) -> None:
        self.options: dict[str, Action] = {}
        self.sections: dict[str, Any] = {}
        self.needed: list[str] = []
        formatter: Any = partial(argparse.HelpFormatter, max_help_position=28)
        super().__init__(f"mixmo {command}", None, description, EPILOG, formatter_class=formatter, allow_abbrev=False)

    def add_argument(self, *names: Any, **settings: Any) -> Action:
        """Add an argument as argparse does, with three more settings.

        `type` is a type hint such as `Path | None` or `Annotated[int, at_least(1)]`, `section` a heading of the help,
        and `shown` the default to show in the help instead of `default`.
        """
        hint, section = settings.pop("type", str), settings.pop("section", None)
        shown, option = settings.pop("shown", settings.get("default")), names[0].startswith("-")
        if hint in (bool, bool | None):
            settings.setdefault("action", "store_true" if shown is False else BooleanOptionalAction)
        elif settings.get("action") in (None, "append", "extend"):
            settings["type"] = _converter(hint)
            settings.setdefault("metavar", _metavar(hint) if option else None)
        required = settings.get("required", False) if option else settings.get("nargs") not in ("?", "*")
        two_way = settings.get("action") is BooleanOptionalAction
        text = _with_notes(settings.pop("help", ""), required, shown, two_way)
        if section and section not in self.sections:
            self.sections[section] = self.add_argument_group(section)
        add = self.sections[section].add_argument if section else super().add_argument
        action: Action = add(*[name.replace("_", "-") for name in names] if option else names, **settings)
        action.help = text  # Python 3.11 adds the default of a two-way flag by itself
        self.options |= dict.fromkeys(action.option_strings, action)
        if required or not option:
            self.needed.append(_usage(action, required))
        self.usage = " ".join((self.prog, *self.needed, "[options]"))
        return action

    def add_fields(self, settings: type, section: str, skip: Collection[str] = ()) -> None:
        """Add one option for each field of a dataclass, with its default and docstring."""
        docs = field_docs(settings)
        for field, hint in get_type_hints(settings, include_extras=True).items():
            if field not in skip:
                default = getattr(settings, field)
                self.add_argument(f"--{field}", type=hint, default=default, help=docs[field], section=section)

    def error(self, message: str) -> NoReturn:
        """Raise a UserError where argparse would print its usage and exit."""
        sentence = " ".join(map(shortened, message.removeprefix("argument ").split(" ")))
        raise UserError(f"{sentence} (see {self.prog} --help)")

    def spelled(self, arguments: Sequence[str]) -> list[str]:
        """Return the arguments with options as declared: dashes for underscores, and no true or false after a flag.

        >>> into = Parser("x", "")
        >>> for name, hint in (("--batch-size", int), ("--flip", bool)):
        ...     _ = into.add_argument(name, type=hint)
        >>> into.spelled(["--batch_size=15", "--flip", "false", "--", "--a_file"])
        ['--batch-size=15', '--no-flip', '--', '--a_file']
        """
        cut = arguments.index("--") if "--" in arguments else len(arguments)  # names of files may follow it
        head, words = list(arguments[:cut]), list[str]()
        while head:
            option, sign, value = (word := head.pop(0)).partition("=")
            if not option.startswith("--"):
                words.append(word)
                continue
            name = option.replace("_", "-")
            if name not in self.options:
                near = nearest(name, self.options)
                self.error(f"unknown option '{option}'" + (f"; did you mean '{near}'?" if near else ""))
            flag = self.options[name].nargs == 0
            if flag and not sign and head and head[0].lower() in BOOLEANS:
                sign, value = "=", head.pop(0)
            words += self._flag(name, value) if flag and sign else [name + sign + value]
        return words + list(arguments[cut:])

    def _flag(self, name: str, value: str) -> list[str]:
        """Return the flag that `NAME=true` or `NAME=false` of earlier versions means, if any is needed."""
        if value.lower() not in BOOLEANS:
            self.error(f"{name}: expected true or false, got {shortened(value) or 'nothing'}")
        off = name.replace("--", "--no-", 1)
        return [name] if BOOLEANS[value.lower()] else [off] if off in self.options else []


def convert(text: str, hint: Any) -> Any:
    """Return the value of a type that a text on the command line or in a YAML file stands for.

    >>> convert("4", int), convert("null", float | None), convert("[0.5, 1]", tuple[float, ...]), convert("inf", float)
    (4, None, (0.5, 1.0), inf)
    """
    kind = _plain(hint)
    if text in ("null", "~") and NoneType in get_args(_bare(hint)):
        return None
    if get_origin(kind) is Literal:
        return get_args(kind)[get_args(kind).index(text)]
    if get_origin(kind) is tuple:
        return tuple(convert(part.strip(), get_args(kind)[0]) for part in text.strip("[]()").split(",") if part.strip())
    if kind is bool:
        return BOOLEANS[text.lower()]
    if kind is Path:
        return Path(text).expanduser()  # a shell leaves --out=~/runs as it is
    return kind(text.removeprefix(".") if text in (".inf", ".nan") else text)  # as YAML spells them


def _bare(hint: Any) -> Any:
    """The type of a hint, without the values that it may take."""
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


def _plain(hint: Any) -> Any:
    """The type in `TYPE | None`."""
    kind = _bare(hint)
    return next(part for part in get_args(kind) if part is not NoneType) if NoneType in get_args(kind) else kind


def expected(hint: Any, text: str, limit: str = "") -> str:
    """Return what to say of a text that cannot be converted.

    >>> expected(Literal["last", "best"] | None, "first")
    'expected last or best, got first'
    """
    kind = _plain(hint)
    names = {Literal: " or ".join(map(str, get_args(kind))), tuple: "a list such as [0.5, 0.75]"}
    numbers = allowed(hint).replace(" | None", "") if kind in (int, float) else None
    wanted = names.get(get_origin(kind)) or numbers or kind.__name__.lower()
    return f"expected {wanted}{limit}, got {shortened(repr(text)[1:-1]) or 'nothing'}"


def _converter(hint: Any) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        if len(text) > LONGEST:
            raise ArgumentTypeError(f"expected at most {LONGEST:,} characters, got {shortened(text)}")
        try:
            value = convert(text, hint)
        except (ValueError, KeyError, RuntimeError) as error:
            raise ArgumentTypeError(expected(hint, text)) from error
        if not within(value, hint):
            raise ArgumentTypeError(expected(hint, text, too_large(value)))
        return value

    return read


def _metavar(hint: Any) -> str:
    kind = _plain(hint)
    names = {Literal: "{" + ",".join(map(str, get_args(kind))) + "}", tuple: "LIST", str: "TEXT"}
    return names.get(get_origin(kind) or kind) or kind.__name__.upper()


def _with_notes(text: str, required: bool, shown: Any, two_way: bool) -> str:
    notes = ["required"] if required else []
    if two_way and isinstance(shown, bool):
        notes.append(f"default: {'on' if shown else 'off'}")
    elif isinstance(shown, tuple):
        notes.append(f"default: [{', '.join(f'{value:.3g}' for value in shown)}]")
    elif isinstance(shown, list) and shown:
        notes.append(f"default: {' '.join(map(str, shown))}")
    elif isinstance(shown, int | float | str | Path) and shown is not False and shown != argparse.SUPPRESS:
        notes.append(f"default: {shown}")
    return " ".join((text, *([f"({', '.join(notes)})"] if notes else []))).replace("%", "%%")


def _usage(action: Action, required: bool) -> str:
    name = " ".join((*action.option_strings[:1], str(action.metavar or action.dest.upper())))
    name += "..." if action.nargs in ("+", "*") else ""
    return name if required else f"[{name}]"


def field_docs(settings: type) -> dict[str, str]:
    """Return the docstrings below the fields of a dataclass, each as one line."""
    definition = ast.parse(textwrap.dedent(inspect.getsource(settings))).body[0]
    assert isinstance(definition, ast.ClassDef)
    return {
        field.target.id: " ".join(str(below.value.value).split())
        for field, below in pairwise(definition.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
    }
