"""Arguments that commands share: a recipe with its fields, and how a command line is read."""

import re
import sys
from argparse import SUPPRESS, BooleanOptionalAction, Namespace
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from mixmo.cli.parser import Parser, convert, expected, field_docs
from mixmo.recipes import Recipe, named, names
from mixmo.recipes.schema import FIELDS, KINDS, RENAMED
from mixmo.storage.plain_yaml import TextLoader, read_yaml
from mixmo.surgery.backbones import BACKBONES
from mixmo.surgery.user_models import allow
from mixmo.utils.errors import UserError, unknown

SECTIONS = {  # of the help, each from this field of the recipe on
    "dataset": "data",
    "model": "network",
    "mask": "mixing",
    "size": "augmentation",
    "batch_size": "optimisation",
    "precision": "run",
}
DEFAULT = "finetune/cut-mixmo"  # recipe of a backbone that is given without one
PAPER = "cifar100/cut-mixmo"  # whose settings are the defaults of `Recipe`
MODEL = re.compile(r"--model(=.*)?").fullmatch
parser = Parser


def add_recipe(into: Parser, arguments: list[str], needed: bool = True, unless: str | None = None) -> None:
    """Add the positional RECIPE, --config and one option for each field; `recipe_of` makes a recipe of them.

    With --model, RECIPE may be missing: `recipe_of` then takes that of backbones. So it may with the option `unless`.
    The help shows the defaults of the recipe in `arguments`, if there is one.
    """
    given = [argument.partition("=")[2] or after for argument, after in pairwise([*arguments, ""]) if MODEL(argument)]
    without = f"not needed with {f'{unless}, or with ' if unless else ''}--model timm/NAME or torchvision/NAME, whose "
    without = f"; {without}recipe is {DEFAULT}" if needed else ""
    needed = needed and unless not in arguments
    asked = {"-h", "--help"} & {*arguments}  # the help is that of all command lines, with --model too
    nargs = "?" if given or asked or not needed else None
    text = "YAML file of fields to override, such as recipe.yaml of a run; options override the file"
    into.add_argument("--config", type=Path | None, help=text)
    name = next((word for word in arguments if word in names()), DEFAULT if needed and given else PAPER)
    text = (
        f"a named recipe such as {PAPER} (`mixmo list recipes`){without}. The defaults below are those of {name}; "
        "with RECIPE before --help, its own"
    )
    into.add_argument("recipe", nargs=nargs, help=text)
    shown = named(name)
    docs, section = field_docs(Recipe), ""
    for field, hint in KINDS.items():
        section = SECTIONS.get(field, section)
        settings: dict[str, Any] = {"action": BooleanOptionalAction} if hint is bool else {"type": hint}
        settings |= {"shown": getattr(shown, field), "default": SUPPRESS, "help": docs[field]}
        into.add_argument(f"--{field}", section=section, **settings)


def recipe_of(parsed: Namespace, base: Recipe | None = None) -> Recipe:
    """Return the named recipe, or `base` if none was named, changed by the fields that were given.

    A backbone of the user, module:function, may be imported if it was given as --model. In a --config file or a run it
    may be untrusted: then only if it was loaded by --plugin.
    """
    if ":" in (model := getattr(parsed, "model", "")):
        allow(model)
    fields = given_fields(parsed)
    if base is None and parsed.recipe is None and (model := fields.get("model")):
        if not BACKBONES.fullmatch(model):
            raise UserError(f"--model {model} needs a recipe; a backbone of a library is timm/NAME or torchvision/NAME")
        parsed.recipe = DEFAULT
    recipe = named(parsed.recipe) if parsed.recipe is not None else base or Recipe()
    try:
        return recipe.replace(**fields)
    except UserError as error:
        if parsed.recipe is None or not recipe.for_families() or not BACKBONES.fullmatch(fields.get("model", "")):
            raise
        raise UserError(f"recipe {parsed.recipe}: {error}") from error


def given_fields(parsed: Namespace) -> dict[str, Any]:
    """Return the recipe's fields that were given: in the --config file, or as options, which override it."""
    options = {field: value for field, value in vars(parsed).items() if field in FIELDS}
    return options if parsed.config is None else {**read_fields(parsed.config), **options}


def read_fields(path: Path) -> dict[str, Any]:
    """Return the fields in a YAML file."""
    try:
        content = read_yaml(path, TextLoader)  # text, as on the command line
        if not isinstance(content, dict):
            raise UserError("it has no fields")
    except (OSError, ValueError) as error:
        reason = " ".join(str(getattr(error, "strerror", None) or error).split())
        raise UserError(f"--config {path} cannot be read as lines such as `width: 4`: {reason}") from error
    fields: dict[str, Any] = {}
    for key, value in content.items():
        field = RENAMED.get(str(key), str(key))
        text = f"[{', '.join(map(str, value))}]" if isinstance(value, list) else str(value)
        hint = KINDS.get(field, str)  # replacing fields of a recipe checks their names
        try:
            fields[field] = convert(text, hint)
        except (ValueError, KeyError) as error:
            raise UserError(f"{field} in {path}: {expected(hint, text)}") from error
    return fields


def parse(into: Parser, arguments: list[str]) -> Namespace:
    """Return the parsed arguments, or raise a UserError of one sentence."""
    words = into.spelled(arguments)
    # As of a shell variable that is not set: a path of it would be the current folder.
    if empty := [word for word in words if not word or (word.endswith("=") and word[:-1] in into.options)]:
        into.error(f"{empty[0] or repr('')} is empty; give a value, or leave it out")
    # argparse drops the dashes from the value, and keeps an empty list.
    if dashes := [word for word in words if word.endswith("=--") and word[:-3] in into.options]:
        into.error(f"{dashes[0]} is not a value; give one, or leave the option out")
    return into.parse_args(words)


def subcommand(command: str, word: str, known: Mapping[str, str], arguments: list[str]) -> tuple[str, list[str]]:
    """Return the first argument, one of `known`, and the others; print a help and exit if it asks for one."""
    if not arguments or arguments[0] in ("-h", "--help"):
        lines = "\n".join(f"  {name:10} {summary}" for name, summary in known.items())
        print(f"usage: mixmo {command} {word} ...\n\n{lines}\n\n`mixmo {command} {word} --help` shows its options.")
        sys.exit()
    if arguments[0] not in known:
        raise unknown(f"{command} {word}", arguments[0], known)
    return arguments[0], arguments[1:]
