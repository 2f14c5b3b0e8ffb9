"""Write the rows of a table batch by batch, to a file or to standard output."""

import csv
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mixmo.utils.errors import UserError
from mixmo.utils.text import printable

Row = dict[str, Any]  # str, float, bool, None or list[str], by column
Write = Callable[[Sequence[Row]], object]


def check_out(form: str | None, out: Path | None) -> str:
    """Return the format, by default that of the file's suffix; raise an error if the rows could not be written."""
    if out is not None and out.exists():
        raise UserError(f"--out {out} exists already; name a new file, or remove it")
    if out is not None and not out.parent.is_dir():
        raise UserError(f"--out {out}: its folder does not exist; make it first")
    suffix = "" if out is None else out.suffix.removeprefix(".").lower()
    named = suffix if suffix in FORMATS else None
    if form and named and form != named:
        raise UserError(f"--format {form} does not fit --out {out}; leave one of them out")
    form = form or named or "csv"
    if form == "parquet" and (out is None or find_spec("pyarrow") is None):
        raise UserError("--format parquet needs --out FILE, and pyarrow (pip install 'mixmo[parquet]')")
    return form


@contextmanager
def writing(form: str, out: Path | None, types: dict[str, str]) -> Iterator[Write]:
    """Open the output for rows with these columns; `types` are string, double, bool or list.

    A file has the name FILE.part until it is complete, and keeps it with the rows so far after an error.
    """
    if out is None:
        with FORMATS[form](sys.stdout, types) as write:
            yield _on_terminal(write) if sys.stdout.isatty() else write
        return
    part = out.with_name(f"{out.name}.part")
    with part.open("xb") if form == "parquet" else part.open("x", encoding="utf-8", newline="") as file:
        try:
            with FORMATS[form](file, types) as write:
                yield write
        except BaseException:
            print(f"{part} holds the rows written so far", file=sys.stderr)
            raise
    part.rename(out)


def _on_terminal(write: Write) -> Write:
    """Write texts without terminal control characters."""
    return lambda rows: write([{name: _shown(value) for name, value in row.items()} for row in rows])


def _shown(value: Any) -> Any:
    if isinstance(value, list):
        return [printable(text) for text in value]
    return printable(value) if isinstance(value, str) else value


@contextmanager
def _csv(file: Any, types: dict[str, str]) -> Iterator[Write]:
    """A list is a JSON array, None an empty cell."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(types)

    def write(rows: Sequence[Row]) -> None:
        writer.writerows([[_cell(value) for value in row.values()] for row in rows])
        file.flush()

    yield write


def _cell(value: Any) -> Any:
    if isinstance(value, float):
        return f"{value:.6g}"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, bool | list) else value


@contextmanager
def _json(file: Any, types: dict[str, str]) -> Iterator[Write]:
    """One array, one object per line."""
    file.write("[")
    before = "\n"

    def write(rows: Sequence[Row]) -> None:
        nonlocal before
        for row in rows:
            file.write(before + json.dumps(row))
            before = ",\n"
        file.flush()

    try:
        yield write
    finally:
        file.write("\n]\n")


@contextmanager
def _parquet(file: Any, types: dict[str, str]) -> Iterator[Write]:
    """One row group per batch."""
    import pyarrow
    import pyarrow.parquet

    strings = pyarrow.list_(pyarrow.string())
    schema = pyarrow.schema([(name, strings if kind == "list" else kind) for name, kind in types.items()])
    with pyarrow.parquet.ParquetWriter(file, schema) as writer:
        yield lambda rows: writer.write_table(pyarrow.Table.from_pylist(list(rows), schema=schema))


FORMATS: dict[str, Callable[[Any, dict[str, str]], AbstractContextManager[Write]]] = {
    "csv": _csv,
    "json": _json,
    "parquet": _parquet,
}
