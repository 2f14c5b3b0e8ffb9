"""Command lines and YAML files read into the typed schema, with errors that name the nearest valid key."""

from argparse import ArgumentError
from collections.abc import Collection
from contextlib import nullcontext, suppress
from itertools import takewhile
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import ArgumentParser, Namespace, get_loader, set_loader

from mixmo.cli.parser import Parser, fault
from mixmo.recipes import Recipe, named
from mixmo.recipes.schema import FIELDS, RENAMED
from mixmo.utils.errors import UserError, check_path, unknown

FLAGS = ("--resume", "--json", "--force", "--help")


def load_yaml(text: str) -> Any:
    """YAML, with the fields of recipes of earlier versions under their present names."""
    value = get_loader("yaml")(text)
    return {RENAMED.get(key, key): each for key, each in value.items()} if isinstance(value, dict) else value


set_loader("recipe", load_yaml, (yaml.YAMLError,))


def parser(command: str, description: str) -> Parser:
    """A parser of one command. Use `parse` to run it."""
    return Parser(
        prog=f"mixmo {command}",
        description=description,
        exit_on_error=False,
        print_config=None,
        parser_mode="recipe",
    )


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
    """A YAML file of recipe fields: readable, a mapping, every key known and given once."""
    try:
        text = path.read_text(encoding="utf-8")
        content = yaml.safe_load(text)
    except Exception as error:  # of a value that is not what it is tagged as, or no date, yaml lets anything pass
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise UserError(f"--config {path} cannot be read: {reason}; give a YAML file of fields") from error
    if not isinstance(content, dict):
        raise UserError(f"--config {path} holds no fields; write lines such as `width: 4`")
    for key in content:
        if key not in FIELDS and key not in RENAMED:
            raise unknown(f"field in {path}:", str(key), FIELDS)
    written = [key.value for key, _ in yaml.compose(text).value]  # of equal keys a mapping has the last
    if twice := sorted({key for key in written if written.count(key) > 1}):
        raise UserError(f"--config {path} gives {', '.join(twice)} more than once; leave one of them")


def recipe_of(parsed: Namespace) -> Recipe:
    return Recipe(**{field: getattr(parsed, field) for field in FIELDS})


def parse(into: Parser, arguments: list[str]) -> Namespace:
    """Parsed arguments, or a UserError of one sentence."""
    for word in arguments:
        if word != word.encode(errors="replace").decode():
            raise UserError(f"{word!a} is not written in UTF-8; rename it, or give another")
    options = {string for action in into._actions for string in action.option_strings}
    arguments = spelled(arguments, options)
    try:
        parsed = into.parse_args(arguments)
    except ArgumentError as error:
        reason = fault(into, arguments) or " ".join(str(error).split())
        raise UserError(f"{reason} (see {into.prog} --help)") from error
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
