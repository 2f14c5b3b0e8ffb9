"""Rows of a table written as they come, to a file or to standard output."""

import csv
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TextIO

from mixmo.utils.errors import UserError

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

    def __init__(self, file: BinaryIO, schema: Any) -> None:
        import pyarrow.parquet

        self.schema, self.writer = schema, pyarrow.parquet.ParquetWriter(file, schema)

    def write(self, rows: Sequence[Row]) -> None:
        import pyarrow

        self.writer.write_table(pyarrow.Table.from_pylist(list(rows), schema=self.schema))

    def close(self) -> None:
        self.writer.close()


def check_out(form: str, out: Path | None) -> None:
    """Whatever would keep the rows from being written, said before they are computed."""
    if out is not None and out.exists():
        raise UserError(f"{out} exists already; give another --out, or remove it")
    if out is not None and _unfinished(out).exists():
        raise UserError(f"{_unfinished(out)} holds the rows of a command that was cut, or still runs; remove it")
    if out is not None and not out.parent.is_dir():
        raise UserError(f"{out.parent} is no folder to write {out.name} to; make it first")
    if form == "parquet":
        if out is None:
            raise UserError("--format parquet is not text; give the file to write with --out FILE")
        _pyarrow()


@contextmanager
def writing(form: str, out: Path | None, types: dict[str, str]) -> Iterator[Rows]:
    """Where rows with these columns go; `types` are str, float, bool or list.

    A file has the name FILE.part until it is complete. If all fails, it keeps that name and the rows that came.
    """
    try:
        if out is None:
            with closing(CsvRows(sys.stdout) if form == "csv" else JsonRows(sys.stdout)) as rows:
                yield rows
            return
        with _unfinished(out).open("xb") as file:
            try:
                with _rows(form, file, types) as rows:
                    yield rows
            except BaseException:
                print(f"{_unfinished(out)} keeps the rows that were written so far", file=sys.stderr)
                raise
        _unfinished(out).rename(out)
    except BrokenPipeError:  # the reader has seen enough
        raise
    except OSError as error:
        where = "standard output" if out is None else out
        raise UserError(f"{where} cannot be written ({error.strerror or error}); make room, or name another") from error


@contextmanager
def _rows(form: str, file: BinaryIO, types: dict[str, str]) -> Iterator[Rows]:
    if form == "parquet":
        with closing(ParquetRows(file, _schema(types))) as rows:
            yield rows
        return
    text = TextIOWrapper(file, encoding="utf-8", newline="")
    with text, closing(CsvRows(text) if form == "csv" else JsonRows(text)) as lines:
        yield lines


def _unfinished(out: Path) -> Path:
    return out.with_name(f"{out.name}.part")


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
