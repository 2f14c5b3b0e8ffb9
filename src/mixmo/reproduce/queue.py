"""A queue: parts of tables in the order in which they are to be trained, each with its own scale, settings and seeds.

- {table: main-table, rows: [CutMix], group: CIFAR-100, scale: paper, seeds: 1, set: [precision=bf16]}
- {table: p, scale: hour}
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mixmo.reproduce import paper
from mixmo.reproduce.plan import Plan, expand
from mixmo.reproduce.scales import SCALES
from mixmo.reproduce.settings import check_settings, read_settings
from mixmo.storage.plain_yaml import read_yaml
from mixmo.utils.errors import UserError, first_line, unknown


class Entry(NamedTuple):
    """One line of a queue; without rows, or without a group of columns, all of them."""

    table: str
    rows: tuple[str, ...] = ()
    group: str | None = None
    scale: str = "paper"
    seeds: int | None = None
    set: tuple[str, ...] = ()


def read_queue(path: Path) -> list[Entry]:
    """Read the entries of a queue from a YAML file."""
    try:
        content = read_yaml(path)
        return [
            Entry(**{**line, "rows": tuple(line.get("rows", ())), "set": tuple(line.get("set", ()))})
            for line in content
        ]
    except OSError as error:
        raise UserError(f"--queue {path} cannot be read ({error.strerror}); give a YAML file") from error
    except (ValueError, TypeError, AttributeError) as error:
        lines = f"lines such as {{table: p, scale: hour}}, with {', '.join(Entry._fields)}"
        raise UserError(f"--queue {path} is not a list of {lines}: {first_line(error)}; correct it") from error


def expand_queue(entries: Sequence[Entry], scale: str | None = None) -> list[Plan]:
    """Return the plan of each entry, cells of its rows and columns only; `scale` replaces its scale and settings."""
    return [_plan(entry if scale is None else entry._replace(scale=scale, set=())) for entry in entries]


def _plan(entry: Entry) -> Plan:
    table = paper.load(entry.table)
    if entry.scale not in SCALES:
        raise unknown("scale", entry.scale, SCALES)
    labels, groups = [row.label for row in table.rows], [column.group for column in table.columns]
    for kind, names, known in (("row", entry.rows, labels), ("group", filter(None, [entry.group]), groups)):
        for name in names:
            if name not in known:
                raise unknown(f"{kind} of {entry.table}", name, set(known))
    settings = read_settings(entry.set)
    plan = expand(table, entry.scale, settings, entry.seeds)
    check_settings(settings, [plan])
    chosen = {
        (i, j): cell
        for (i, j), cell in plan.cells.items()
        if (not entry.rows or labels[i] in entry.rows) and entry.group in (None, groups[j])
    }
    if not chosen:
        raise UserError(f"{entry.table} has nothing of this at scale {entry.scale}; take rows and columns that it has")
    return plan._replace(cells=chosen)


def joined(plans: Sequence[Plan]) -> list[Plan]:
    """Return each table that parts are of, once per scale, settings and seeds: all of it, to be filled and printed."""
    found: dict[tuple[Any, ...], Plan] = {}
    for plan in plans:
        key = (plan.table.name, plan.scale, _key(plan.settings), plan.seeds)
        if key not in found:
            found[key] = expand(plan.table, plan.scale, plan.settings, plan.seeds)
    return list(found.values())


def _key(settings: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted(settings.items()))
