"""Rows of a table written as they come, to a file or to standard output."""

import csv
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TextIO

from mixmo.errors import UserError

Row = dict[str, Any]  # str, float, bool, None or list[str], by column


class Rows(Protocol):
    def write(self, rows: Sequence[Row]) -> None: ...

    def close(self) -> None: ...


class CsvRows:
    """Comma-separated. A list is a JSON array, whatever its words hold: [] is one without any, None is empty."""

    def __init__(self, file: TextIO) -> None:
        self.file, self.writer = file, csv.writer(file, lineterminator="\n")
        self.began = False

    def write(self, rows: Sequence[Row]) -> None:
        if not self.began:
            self.writer.writerow(rows[0])
            self.began = True
        self.writer.writerows([[_cell(value) for value in row.values()] for row in rows])
        self.file.flush()

    def close(self) -> None:
        pass


class JsonRows:
    """One JSON array, one object a line."""

    def __init__(self, file: TextIO) -> None:
        self.file, self.before = file, "[\n"

    def write(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self.file.write(self.before + json.dumps(row))
            self.before = ",\n"
        self.file.flush()

    def close(self) -> None:
        self.file.write(("" if self.before == ",\n" else "[") + "\n]\n")
        self.file.flush()


class ParquetRows:
    """A Parquet file, one group of rows a batch."""

    def __init__(self, path: Path, schema: Any) -> None:
        import pyarrow.parquet

        self.schema, self.writer = schema, pyarrow.parquet.ParquetWriter(path, schema)

    def write(self, rows: Sequence[Row]) -> None:
        import pyarrow

        self.writer.write_table(pyarrow.Table.from_pylist(list(rows), schema=self.schema))

    def close(self) -> None:
        self.writer.close()


def check_out(form: str, out: Path | None) -> None:
    """Whatever would keep the rows from being written, said before they are computed."""
    if out is not None and out.exists():
        raise UserError(f"{out} exists already; give another --out, or remove it")
    if out is not None and not out.parent.is_dir():
        raise UserError(f"{out.parent} is no folder to write {out.name} to; make it first")
    if form == "parquet":
        if out is None:
            raise UserError("--format parquet is not text; give the file to write with --out FILE")
        _pyarrow()


@contextmanager
def writing(form: str, out: Path | None, types: dict[str, str]) -> Iterator[Rows]:
    """Where rows with these columns go; `types` are str, float, bool or list. What was written stays if all fails."""
    if form == "parquet":
        assert out is not None
        rows: Rows = ParquetRows(out, _schema(types))
        try:
            yield rows
        finally:
            rows.close()
        return
    file = sys.stdout if out is None else out.open("w", newline="", encoding="utf-8")
    try:
        rows = CsvRows(file) if form == "csv" else JsonRows(file)
        try:
            yield rows
        finally:
            rows.close()
    finally:
        if out is not None:
            file.close()


def _cell(value: Any) -> Any:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list) else value


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise UserError("--format parquet needs pyarrow; install it with pip install 'mixmo[parquet]'") from error
    return pyarrow


def _schema(types: dict[str, str]) -> Any:
    pyarrow = _pyarrow()
    known = {
        "str": pyarrow.string(),
        "float": pyarrow.float64(),
        "bool": pyarrow.bool_(),
        "list": pyarrow.list_(pyarrow.string()),
    }
    return pyarrow.schema([(name, known[kind]) for name, kind in types.items()])
