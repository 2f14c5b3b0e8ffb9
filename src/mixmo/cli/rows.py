"""Write the rows of a table batch by batch, to a file or to standard output."""

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
    """Comma-separated values. A list is a JSON array, None an empty cell."""

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
    """One JSON array, one object per line."""

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
    """A Parquet file, one row group per batch."""

    def __init__(self, file: BinaryIO, schema: Any) -> None:
        import pyarrow.parquet

        self.schema, self.writer = schema, pyarrow.parquet.ParquetWriter(file, schema)

    def write(self, rows: Sequence[Row]) -> None:
        import pyarrow

        self.writer.write_table(pyarrow.Table.from_pylist(list(rows), schema=self.schema))

    def close(self) -> None:
        self.writer.close()


def check_out(form: str, out: Path | None) -> None:
    """Raise an error, before anything is computed, if the rows could not be written."""
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
    """Open the output for rows with these columns; `types` are str, float, bool or list.

    A file has the name FILE.part until it is complete, and keeps it with the rows so far after an error.
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
                print(f"{_unfinished(out)} holds the rows written so far", file=sys.stderr)
                raise
        _unfinished(out).rename(out)
    except BrokenPipeError:  # the reader has closed the pipe, which is no error
        raise
    except OSError as error:
        where = error.filename or out or "standard output"
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
