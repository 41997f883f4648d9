"""``rlaudit query``: SQL over one run or several."""

from __future__ import annotations

import os
import re
import sys
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from rlaudit.errors import BadOption, QueryError

if TYPE_CHECKING:
    import duckdb

NAMED_RUN = re.compile(r"([A-Za-z_]\w*)=(.+)", re.DOTALL)


class Format(str, Enum):
    """Output formats of a query."""

    table = "table"
    csv = "csv"
    json = "json"
    parquet = "parquet"


class QueryCommand(TyperCommand):
    """Several runs and then the query are one list to the parser, and two things to the reader."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The usage line's end."""
        return ["[OPTIONS]", "RUN", "SQL"]


PARSER = QueryCommand


def command(
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN SQL",
            show_default=False,
            help="A run's folder, or several as NAME=RUN, then the query. Without SQL it is read from standard input.",
        ),
    ],
    format: Annotated[Format, typer.Option("--format", "-f", help="How to print the result.")] = Format.table,
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write to FILE instead of standard output.")] = None,
    rows: Annotated[int, typer.Option("--rows", metavar="N", help="Rows that --format table prints at most; 0 prints all.")] = 200,
) -> None:
    """Ask a run in SQL (DuckDB). Nothing of the run is changed.

    Tables and views: rlaudit schema. With several runs each has its own schema: a.tokens, b.tokens.

    csv, json and parquet carry full precision; table rounds for reading. Missing values are empty in csv and null in json.
    json is an array of objects; NaN and infinities, which JSON lacks, are the strings "NaN", "Infinity", "-Infinity".

    \b
    Examples:
      rlaudit query RUN "select step, avg(abs(delta)) from tokens where comparable group by step order by step"
      rlaudit query RUN "select * from steps" --format csv --output steps.csv
      rlaudit query a=RUN_A b=RUN_B "select step, a.k3, b.k3 from a.steps a join b.steps b using (step)"
    """
    from rlaudit.cli import results

    runs, sql = runs_and_sql(arguments)
    connection = connect(runs)
    *settings, query = results.statements(connection, sql)
    for setting in settings:
        if setting.kind != "SET":
            raise QueryError("there are several queries, and the output has room for one; before it only SET statements may stand")
        results.execute(connection, setting)
    if format is Format.parquet:
        results.write_parquet(connection, query, output)
    else:
        results.write(results.execute(connection, query), format.value, output, most_rows=rows)


def runs_and_sql(arguments: list[str]) -> tuple[dict[str, str], str]:
    """The runs by name (one without a name is "main") and the query, from the command's arguments."""
    given = list(arguments)
    if looks_like_run(given[-1]):
        if sys.stdin.isatty():
            raise BadOption('there is no query: give it after the run, for example "select * from steps"')
        given.append(sys.stdin.read())
    *places, sql = given
    if not places:
        raise BadOption(f'there is no run before the query; use: rlaudit query RUN "{sql}"')
    return name_runs(places), sql


def looks_like_run(argument: str) -> bool:
    """True for a path that exists or a NAME=PATH; a query has blanks."""
    # os.path.exists, because Path.exists raises for what is too long to be a path, as queries are.
    named = NAMED_RUN.fullmatch(argument)
    return os.path.exists(argument) or (("://" in argument or named is not None) and " " not in argument)  # noqa: PTH110


def name_runs(places: list[str]) -> dict[str, str]:
    """Run paths by name. BadOption where several runs have no names or equal ones."""
    if len(places) == 1 and (os.path.exists(places[0]) or not NAMED_RUN.fullmatch(places[0])):  # noqa: PTH110
        return {"main": places[0]}
    runs: dict[str, str] = {}
    for place in places:
        named = NAMED_RUN.fullmatch(place)
        if named is None:
            raise BadOption(f"several runs need names, and {place!r} has none; write for example a={place}")
        name, path = named.groups()
        if name in runs:
            raise BadOption(f"two runs are called {name!r}; give each its own name")
        runs[name] = path
    return runs


def connect(runs: dict[str, str]) -> duckdb.DuckDBPyConnection:
    """A connection to the runs, opened under their names."""
    from rlaudit.query import connect_runs
    from rlaudit.run import open_runs

    return connect_runs(open_runs(runs))
