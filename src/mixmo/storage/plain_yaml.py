"""Read YAML files that may be untrusted: plain fields, as in recipes."""

from pathlib import Path
from typing import Any

import yaml

from mixmo.utils.errors import UserError, quoted

LARGEST = 100_000  # characters; a recipe has 2,000
DEEPEST = 20  # brackets within each other
# The loaders in C are ten times as fast. That of texts leaves every value as it is in the file.
Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
TextLoader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)


def read_yaml(path: Path, loader: type = Loader) -> Any:
    """Return the content of a YAML file.

    Raises:
        UserError: If it has aliases or merge keys, by which a few lines can expand to gigabytes, or tags, which
            PyYAML constructs without checks. Also if it is longer, or nested deeper, than a file of fields, or has a
            key twice.
        ValueError: If it is no YAML, or not in UTF-8.
    """
    with path.open(encoding="utf-8") as file:
        return parse_yaml(file.read(LARGEST + 1), loader)


def parse_yaml(text: str, loader: type = Loader) -> Any:
    """Return the content of a YAML text, as `read_yaml` does."""
    if len(text) > LARGEST:
        raise UserError(f"it has more than {LARGEST:,} characters; give a file of fields such as `width: 4`")
    try:
        _check_plain(text, loader)
        _check_keys(yaml.compose(text, loader))
        return yaml.load(text, loader)
    except (yaml.YAMLError, RecursionError, OverflowError) as error:  # 1:59:59:... is a number with base 60
        raise ValueError(" ".join(str(error).split())) from error


def _check_keys(node: yaml.Node | None) -> None:
    """Raise an error for a key that is given twice: the first value would be lost without a word."""
    if not isinstance(node, yaml.MappingNode):
        return
    seen = set()
    for key, value in node.value:
        name = str(key.value)
        if name in seen:
            raise UserError(f"line {key.start_mark.line + 1} has {quoted(name)} again; give each field once")
        seen.add(name)
        _check_keys(value)


def _check_plain(text: str, loader: type) -> None:
    depth = 0
    for event in yaml.parse(text, loader):
        repeats = isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None
        line = event.start_mark.line + 1 if event.start_mark else 0
        if repeats or (isinstance(event, yaml.ScalarEvent) and event.value == "<<"):
            raise UserError(
                f"line {line} has an anchor (&), an alias (*) or a merge key (<<); write the values themselves"
            )
        if (tag := getattr(event, "tag", None)) is not None:
            raise UserError(f"line {line} has a tag ({quoted(tag)}); write plain values")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            raise UserError(f"line {line} is nested more than {DEEPEST} deep; write plain fields")
