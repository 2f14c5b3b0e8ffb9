"""Command lines and YAML files read into the typed schema, with errors that name the nearest valid key."""

import re
from argparse import Action, ArgumentError
from collections.abc import Collection
from contextlib import nullcontext, suppress
from itertools import takewhile
from pathlib import Path

import jsonargparse
import yaml
from jsonargparse import ArgumentParser, DefaultHelpFormatter, Namespace

from mixmo.errors import UserError, check_path, unknown
from mixmo.recipes import Recipe, named
from mixmo.recipes.schema import FIELDS

FLAGS = ("--resume", "--json", "--force", "--help")

jsonargparse.set_parsing_settings(docstring_parse_attribute_docstrings=True)


def parser(command: str, description: str) -> ArgumentParser:
    """A parser of one command. Use `parse` to run it."""
    return ArgumentParser(
        prog=f"mixmo {command}",
        description=description,
        exit_on_error=False,
        print_config=None,
        formatter_class=Formatter,
    )


class Formatter(DefaultHelpFormatter):
    """Help without Python's names for types."""

    def _expand_help(self, action: Action) -> str:
        return worded(super()._expand_help(action))


def worded(text: str) -> str:
    """Types as a reader of the help calls them.

    >>> worded("a file (type: Path | null, default: null)"), worded("epoch (type: Literal['last', 'best'])")
    ('a file (type: path)', 'epoch (last or best)')
    """
    text = re.sub(r"( \| null)?, default: null| \(default: null\)", "", text)
    text = re.sub(r"type: (?:Optional\[)?Literal\[([^\]]*)\]+", lambda found: either(found[1]), text)
    return re.sub(r"type: (?:<class 'Path'>|Path\b)", "type: path", text)


def either(names: str) -> str:
    return names.replace("'", "").replace(", ", " or ")


def add_recipe(into: ArgumentParser, arguments: list[str], needed: bool = True) -> None:
    """The positional RECIPE, --config and one option for each of its fields; the named recipe gives the defaults."""
    nargs = None if needed else "?"
    into.add_argument("recipe", nargs=nargs, help="a named recipe such as cifar100/cut-mixmo (`mixmo list recipes`)")
    into.add_argument(
        "--config", action="config", help="YAML file with fields to override, such as a run's recipe.yaml"
    )
    into.add_class_arguments(Recipe, as_group=False)
    before = ["", *arguments][: len(arguments)]
    positional = [w for b, w in zip(before, arguments, strict=True) if not w.startswith("-") and not takes_value(b)]
    name = positional[0] if positional else None
    helping = "--help" in arguments or "-h" in arguments
    if name is not None:
        with suppress(UserError) if helping else nullcontext():
            defaults = named(name)
            into.set_defaults({field: getattr(defaults, field) for field in FIELDS})
    for previous, word in zip(before, arguments, strict=True):
        if previous == "--config":
            check_file(Path(word))
        elif word.startswith("--config="):
            check_file(Path(word.removeprefix("--config=")))


def takes_value(word: str) -> bool:
    """Whether the word after this one is its value.

    >>> takes_value("--width"), takes_value("--width=4"), takes_value("--resume"), takes_value("digits/vanilla")
    (True, False, False, False)
    """
    return word.startswith("--") and "=" not in word and word not in FLAGS


def check_file(path: Path) -> None:
    """A YAML file of recipe fields: readable, a mapping, every key known."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise UserError(f"--config {path} cannot be read: {reason}; give a YAML file of fields") from error
    if not isinstance(content, dict):
        raise UserError(f"--config {path} holds no fields; write lines such as `width: 4`")
    for key in content:
        if key not in FIELDS:
            raise unknown(f"field in {path}:", str(key), FIELDS)


def recipe_of(parsed: Namespace) -> Recipe:
    return Recipe(**{field: getattr(parsed, field) for field in FIELDS})


def parse(into: ArgumentParser, arguments: list[str]) -> Namespace:
    """Parsed arguments, or a UserError of one sentence."""
    for word in arguments:
        if word != word.encode(errors="replace").decode():
            raise UserError(f"{word!a} is not written in UTF-8; rename it, or give another")
    options = {string for action in into._actions for string in action.option_strings}
    arguments = spelled(arguments, options)
    try:
        parsed = into.parse_args(arguments)
    except ArgumentError as error:
        raise UserError(f"{dashed(sentence(str(error)), options)} (see {into.prog} --help)") from error
    # As of a shell variable that is not set: a path of it would be the current folder.
    if empty := [word for word in arguments if not word or word in {f"{option}=" for option in options}]:
        raise UserError(f"{empty[0] or repr('')} is empty; give a value, or leave it out (see {into.prog} --help)")
    for name, value in vars(parsed).items():
        if isinstance(value, Path):  # a shell leaves --out=~/runs as it is
            setattr(parsed, name, check_path(name, value))
    return parsed


def spelled(arguments: list[str], options: Collection[str]) -> list[str]:
    """Long options as the parser has them, whether they are written with `-` or `_`; unknown ones are refused.

    >>> spelled(["--shard-mb=15", "--dry_run", "--", "--a-file"], {"--shard_mb", "--dry-run"})
    ['--shard_mb=15', '--dry-run', '--', '--a-file']
    """
    known = {option.replace("_", "-"): option for option in options}
    words = list(takewhile(lambda word: word != "--", arguments))  # names of files may follow it
    for i, word in enumerate(words):
        option, sign, value = word.partition("=")
        if option.startswith("--"):
            if option.replace("_", "-") not in known:
                raise unknown("option", option, options)
            words[i] = known[option.replace("_", "-")] + sign + value
    return words + arguments[len(words) :]


def dashed(message: str, options: Collection[str]) -> str:
    """Options that lack as they are written on a command line.

    >>> dashed("the following arguments are required: recipe, out", {"--out"})
    'the following arguments are required: recipe, --out'
    >>> dashed("width: expected int, got x", {"--out"})
    'width: expected int, got x'
    """
    what, _, names = message.partition("required: ")
    if not names:
        return message
    written = [f"--{name}" if f"--{name}" in options else name for name in names.split(", ")]
    return f"{what}required: {', '.join(written)}"


def sentence(message: str) -> str:
    """jsonargparse's message in one line, without Python's names for types.

    >>> sentence('Parser key "width":\\n  Expected a <class \\'int\\'>. Got value: x')
    'width: expected int, got x'
    >>> sentence('Parser key "minutes": Does not validate against any of the Union subtypes Subtypes: [float, NoneType]'
    ...          ' Errors: - Expected a float - Expected a NoneType Given value type: str Given value: x')
    'minutes: expected float, got x'
    >>> sentence('Parser key "r":\\n  Expected a <class \\'float\\'>. Got value: inf')
    'r: expected float, got inf; as a number it is written .inf'
    >>> sentence('Parser key "which":\\n  Expected a typing.Literal[\\'last\\', \\'best\\']. Got value: x')
    'which: expected last or best, got x'
    """
    text = " ".join(message.split())
    text = re.sub(r"<class '(\w+)'>", r"\1", text)
    text = re.sub(r"typing\.Literal\[([^\]]*)\]", lambda found: either(found[1]), text)
    union = re.fullmatch(r'Parser key "([^"]+)": .* Union .*Subtypes: \[(.+), NoneType\].* Given value: (.*)', text)
    if union:
        return f"{union[1]}: expected {union[2]}, got {union[3]}"
    match = re.fullmatch(r'Parser key "([^"]+)"(?: element \d+)?: Expected an? (.+)\. Got value:(.*)', text)
    if not match:
        return text
    kind = "a list such as [0.5, 0.75]" if match[2].startswith("tuple") else match[2]
    value = match[3].strip()
    hint = f"; as a number it is written .{value}" if value in ("inf", "nan") else ""
    return f"{match[1]}: expected {kind}, got {value or 'nothing'}{hint}"
