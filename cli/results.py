"""Query results in every format that the command line writes."""

from __future__ import annotations

import datetime
import decimal
import json
import math
import re
import shutil
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, TypeVar

from rich.cells import cell_len

from rlaudit.cli.output import replacing, text_output
from rlaudit.errors import BadOption, QueryError
from rlaudit.report.as_json import strict
from rlaudit.report.grid import Grid
from rlaudit.report.text import MISSING, nonfinite

if TYPE_CHECKING:
    import duckdb

Answer = TypeVar("Answer")

BATCH = 2048
ARROW_BATCH = 100_000
GAP = 2
LONGEST_CELL = 60
"""Characters of a list or text that a table shows."""
NEEDS_QUOTES = re.compile(r'[",\r\n]|^$')


class Statement(NamedTuple):
    """One SQL statement. kind: DuckDB's name for its type, for example SELECT, SET or EXPLAIN."""

    sql: str
    kind: str


def statements(connection: duckdb.DuckDBPyConnection, sql: str) -> list[Statement]:
    """The statements of ``sql``, at least one. QueryError where it does not parse or is empty."""
    parsed = run_query(connection, lambda: connection.extract_statements(sql))
    found = [Statement(statement.query, statement.type.name) for statement in parsed]
    if not found:
        raise QueryError("the query is empty")
    return found


def run_query(connection: duckdb.DuckDBPyConnection, work: Callable[[], Answer]) -> Answer:
    """``work()``, which uses ``connection``, on another thread, so that Ctrl-C stops it at once.

    DuckDB itself looks for signals only between its tasks, which may be a minute apart. Its errors become QueryError.
    """
    import duckdb

    with ThreadPoolExecutor(max_workers=1) as pool:
        future = pool.submit(work)
        try:
            return future.result()
        except KeyboardInterrupt:
            connection.interrupt()
            raise
        except duckdb.Error as error:
            raise QueryError(str(error).strip()) from error


def execute(connection: duckdb.DuckDBPyConnection, statement: Statement) -> Result:
    """Run one statement. QueryError as ``rlaudit.query.execute``."""
    import rlaudit.query

    return Result(run_query(connection, lambda: rlaudit.query.execute(connection, statement.sql)))


class Result:
    """The rows of an executed query, read once, in batches. Equal column names get a number: ``step``, ``step_1``."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        self.columns = distinct([column[0] for column in connection.description or []])

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Rows as Python values. QueryError where a row can't be computed."""
        while True:
            batch = run_query(self._connection, lambda: self._connection.fetchmany(BATCH))
            if not batch:
                return
            yield from batch


def distinct(names: Sequence[str]) -> list[str]:
    """Names with a number where they repeat.

    >>> distinct(["step", "k3", "step"])
    ['step', 'k3', 'step_1']
    """
    taken: list[str] = []
    for name in names:
        number, fresh = 0, name
        while fresh in taken:
            number += 1
            fresh = f"{name}_{number}"
        taken.append(fresh)
    return taken


def write(result: Result, format: str, output: Path | None, *, most_rows: int = 0) -> None:
    """Write ``result`` to ``output`` (None: standard output) as table, csv or json.

    most_rows: how many rows a table shows, 0 for all; the other formats always write all.
    """
    writers: dict[str, Callable[[Result, IO[str]], None]] = {
        "csv": write_csv,
        "json": write_json,
        "table": lambda rows, file: write_table(rows, file, most_rows),
    }
    with text_output(output) as file:
        writers[format](result, file)


def write_csv(result: Result, file: IO[str]) -> None:
    """RFC 4180 with a header; null is empty, empty text is ``""``; lists and structs are JSON text."""
    file.write(",".join(_csv_cell(name) for name in result.columns) + "\n")
    for row in result.rows():
        file.write(",".join(_csv_cell(value) for value in row) + "\n")


def _csv_cell(value: Any) -> str:
    if value is None:
        return ""
    plain = json_value(value)
    if isinstance(value, float) and not math.isfinite(value):
        return nonfinite(value)
    text = plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False, allow_nan=False)
    return '"' + text.replace('"', '""') + '"' if NEEDS_QUOTES.search(text) else text


def write_json(result: Result, file: IO[str]) -> None:
    """A JSON array with one object a line; see ``json_value`` for what JSON has no type for."""
    separator = "[\n"
    for row in result.rows():
        values = {name: json_value(value) for name, value in zip(result.columns, row, strict=True)}
        file.write(separator + json.dumps(values, ensure_ascii=False, allow_nan=False))
        separator = ",\n"
    file.write("\n]\n" if separator != "[\n" else "[]\n")


def json_value(value: Any) -> Any:
    """``value`` in JSON's types.

    Non-finite floats are "NaN", "Infinity", "-Infinity"; bytes are hexadecimal digits; times ISO 8601; intervals seconds;
    whole decimals integers, others floats.
    """
    if isinstance(value, list | tuple):
        return [json_value(item) for item in value]
    if isinstance(value, dict):
        return {str(key): json_value(item) for key, item in value.items()}
    for kinds, convert in CONVERSIONS:
        if isinstance(value, kinds):
            return convert(value)
    return strict(value)


CONVERSIONS: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    ((bytes, bytearray, memoryview), lambda value: bytes(value).hex()),
    (decimal.Decimal, lambda value: int(value) if value == value.to_integral_value() else float(value)),
    (datetime.timedelta, lambda value: value.total_seconds()),
    ((datetime.date, datetime.time), lambda value: value.isoformat()),
    (uuid.UUID, str),
)


def write_parquet(connection: duckdb.DuckDBPyConnection, query: Statement, output: Path | None) -> None:
    """The result of ``query`` as one Parquet file. BadOption where it would go to a terminal."""
    if query.kind != "SELECT":
        raise QueryError(f"{query.kind} has no rows to write; use --format table")
    if output is None and sys.stdout.isatty():
        raise BadOption("Parquet is binary and standard output is a terminal; use --output FILE or a pipe")
    reader = run_query(connection, lambda: _arrow_reader(connection.sql(query.sql)))

    def copy(where: Any) -> None:
        run_query(connection, lambda: _copy_batches(reader, where))

    if output is None:
        copy(sys.stdout.buffer)
        return
    with replacing(output) as temporary:
        copy(temporary)


def _arrow_reader(relation: Any) -> Any:
    # DuckDB renamed fetch_arrow_reader in 2.0.
    return relation.to_arrow_reader(ARROW_BATCH) if hasattr(relation, "to_arrow_reader") else relation.fetch_arrow_reader(ARROW_BATCH)


def _copy_batches(reader: Any, where: Any) -> None:
    import pyarrow.parquet as pq

    names = distinct(reader.schema.names)
    schema = reader.schema
    for index, name in enumerate(names):
        schema = schema.set(index, schema.field(index).with_name(name))
    with pq.ParquetWriter(where, schema, compression="zstd") as writer:
        for batch in reader:
            writer.write_batch(batch.rename_columns(names))


def write_table(result: Result, file: IO[str], most_rows: int) -> None:
    """Aligned columns for reading: rounded to six digits, long lists and texts shortened, and said so."""
    shown: list[tuple[Any, ...]] = []
    more = False
    for row in result.rows():
        if most_rows and len(shown) == most_rows:
            more = True
            break
        shown.append(row)
    numeric = tuple(all(row[i] is None or _is_number(row[i]) for row in shown) for i in range(len(result.columns)))
    cells = tuple(tuple(_table_cell(value) for value in row) for row in shown)
    headings, lines = Grid("", tuple(result.columns), numeric, cells).lines(GAP)
    if file.isatty() and cell_len(headings[0]) > shutil.get_terminal_size().columns:
        lines = _records(result.columns, cells)
        headings = []
    for line in [*headings, *lines]:
        file.write(line + "\n")
    if more:
        file.write(f"({len(shown):,} rows shown; there are more: --rows 0 prints all, --format csv writes all)\n")
    else:
        file.write(f"({len(shown):,} row{'' if len(shown) == 1 else 's'})\n")


def _records(columns: list[str], rows: tuple[tuple[str, ...], ...]) -> list[str]:
    """A line for each value, for tables that are wider than the terminal."""
    width = max(cell_len(name) for name in columns)
    lines = []
    for number, row in enumerate(rows, 1):
        lines.append(f"-- row {number:,}")
        lines += [f"{name}{' ' * (width - cell_len(name) + GAP)}{cell}" for name, cell in zip(columns, row, strict=True)]
    return lines


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | decimal.Decimal) and not isinstance(value, bool)


def _table_cell(value: Any) -> str:
    if value is None:
        return MISSING
    if isinstance(value, str):
        return _short(_printable(value), f"… ({len(value):,} characters)")
    if isinstance(value, float):
        return _six_digits(value)
    if isinstance(value, decimal.Decimal):
        return f"{value:f}"
    plain = json_value(value)
    count = f" ({len(plain):,} items)" if isinstance(plain, list | dict) else ""
    return _short(plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False), f"…{count}")


def _six_digits(value: float) -> str:
    if not math.isfinite(value):
        return nonfinite(value)
    distance = abs(abs(value) - 1)
    # As in reports: what is not 1 must not look like 1.
    return repr(value) if 0 < distance < 1e-4 else f"{value:.6g}"


def _printable(text: str) -> str:
    """Control characters as escapes: what a model wrote must not steer the terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _short(text: str, end: str) -> str:
    return text if len(text) <= LONGEST_CELL else text[: LONGEST_CELL - len(end)] + end
