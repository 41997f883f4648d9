"""SQL over runs: DuckDB connections with one view a table, the documented views and the macros."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from rlaudit import schema
from rlaudit.arrow import arrow_schema
from rlaudit.errors import BadOption, DamagedRun, QueryError
from rlaudit.run import Run

_CHANGES_FILES = {"COPY", "EXPORT", "ATTACH", "DETACH", "LOAD", "COPY_DATABASE"}


@cache
def view_files() -> dict[str, str]:
    """The SQL files of ``rlaudit.sql``: file name to text, in the order in which they build on each other."""
    files = resources.files("rlaudit.sql").iterdir()
    return {file.name: file.read_text(encoding="utf-8") for file in sorted(files, key=lambda f: f.name) if file.name.endswith(".sql")}


def connect(run: Run) -> duckdb.DuckDBPyConnection:
    """A connection on which ``run``'s tables and views have their plain names. The caller closes it."""
    return connect_runs({"main": run})


def connect_runs(runs: Mapping[str, Run]) -> duckdb.DuckDBPyConnection:
    """A connection on which each run's tables and views lie in the schema of its name (``a.tokens``, ``b.tokens``).

    BadOption for a name that is no plain SQL identifier.
    """
    connection = duckdb.connect()
    _register_functions(connection)
    _keep_alive(connection, list(runs.values()))
    for name, run in runs.items():
        if not name.isidentifier():
            raise BadOption(f"{name!r} can't name a run in SQL; use letters, digits and underscores")
        connection.execute(f'CREATE SCHEMA IF NOT EXISTS "{name}"')
        connection.execute(f"SET schema = '{name}'")
        for table in sorted(schema.TABLES, key=lambda table: table.name == "routing"):  # routing's view may join the others
            _create_table_view(connection, run, table.name)
        for text in view_files().values():
            connection.execute(text)
        connection.execute("SET schema = 'main'")
    return connection


_ROUTING_BY_REQUEST = """
CREATE VIEW routing AS
SELECT routing.* REPLACE (
           coalesce(routing.sequence_id, links.sequence_id) AS sequence_id,
           coalesce(routing.step, links.step) AS step,
           CASE WHEN links.sequence_id IS NULL THEN routing.first_position
                ELSE greatest(routing.first_position, links.routing_from) END AS first_position,
           CASE WHEN links.sequence_id IS NULL THEN routing.tokens
                ELSE routing.tokens - greatest(0, links.routing_from - routing.first_position) END AS tokens,
           CASE WHEN links.sequence_id IS NULL OR links.routing_from <= routing.first_position THEN routing.experts
                ELSE routing_tail(routing.experts, links.routing_from - routing.first_position, routing.tokens) END AS experts,
           CASE WHEN links.sequence_id IS NULL OR links.routing_from <= routing.first_position THEN routing.weights
                ELSE routing_tail(routing.weights, links.routing_from - routing.first_position, routing.tokens) END AS weights,
           coalesce(routing.policy_updates, links.policy_updates) AS policy_updates
       )
FROM ({rows}) routing
LEFT JOIN (
    SELECT links.attempt, links.request_id, links.sequence_id, links.step, links.routing_from, scored.policy_updates
    FROM links
    LEFT JOIN (
        SELECT attempt, step, sequence_id, min(policy_updates) AS policy_updates
        FROM scores
        WHERE source IN ('rollout', 'engine')
        GROUP BY attempt, step, sequence_id
        HAVING count(DISTINCT policy_updates) = 1
    ) scored ON links.attempt = scored.attempt AND links.step = scored.step AND links.sequence_id = scored.sequence_id
    WHERE links.routing_from IS NOT NULL
) links
  ON routing.sequence_id IS NULL AND routing.attempt = links.attempt AND routing.request_id = links.request_id
"""
"""Routing that engines wrote by request, under the sequences that these produced: each token's rows by the call that had it first."""


def _create_table_view(connection: duckdb.DuckDBPyConnection, run: Run, table: str) -> None:
    paths = [segment.path for segment in run.segments(table)]
    if paths:
        run.prepare(connection)
        # Prepared parameters are not allowed in views, so the file names are written as literals.
        listed = ", ".join(_literal(path) for path in paths)
        rows = f"SELECT * FROM read_parquet([{listed}], union_by_name = false)"
        by_request = table == "routing" and any(segment.first_step is None for segment in run.segments(table))
        try:
            connection.execute(f"CREATE VIEW {table} AS {rows}" if not by_request else _ROUTING_BY_REQUEST.format(rows=rows))
        except duckdb.Error as error:
            run.check_segments()  # names the file that is at fault and says what to do
            raise DamagedRun(f"table {table} of {run.path} can't be read: {str(error).splitlines()[0]}") from error
        return
    # A table without rows still has its columns, so that every query works on every run.
    name = f"rlaudit_empty_{table}"
    connection.register(name, arrow_schema(table).empty_table())
    connection.execute(f"CREATE TABLE {table} AS SELECT * FROM {name}")
    connection.unregister(name)


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def execute(connection: duckdb.DuckDBPyConnection, sql: str) -> duckdb.DuckDBPyConnection:
    """Run ``sql`` (one or more statements; the last one's result is left to fetch) without letting it change files.

    QueryError carries DuckDB's message and, where one is known, what to try.
    """
    try:
        statements = connection.extract_statements(sql)
        for statement in statements:
            kind = statement.type.name.upper()
            if kind in _CHANGES_FILES:
                raise QueryError(f"{kind} is not allowed: queries only read; use --format and --output to keep a result")
        if not statements:
            raise QueryError("the query is empty")
        for statement in statements:
            connection.execute(statement)
    except duckdb.Error as error:
        raise QueryError(_explain(error)) from error
    return connection


def _explain(error: duckdb.Error) -> str:
    text = str(error).strip()
    if isinstance(error, duckdb.OutOfMemoryException):
        return f"{text.splitlines()[0]}\nThe query does not fit into memory: filter by step, for example WHERE step BETWEEN 0 AND 9."
    if isinstance(error, duckdb.IOException | duckdb.InvalidInputException) and ".parquet" in text:
        return f"{text.splitlines()[0]}\nMove that file out of the run's folder to use the rest; its rows are then missing."
    return text


def _register_functions(connection: duckdb.DuckDBPyConnection) -> None:
    # DuckDB's stubs know neither type="arrow", which its documentation names, nor functions from Arrow arrays to Arrow arrays.
    create: Any = connection.create_function
    create("routing_rows", _routing_rows, ["BLOB", "INTEGER", "INTEGER"], "USMALLINT[][]", type="arrow")
    create("routing_tail", _routing_tail, ["BLOB", "INTEGER", "INTEGER"], "BLOB", type="arrow")
    create(
        "routing_overlap",
        _routing_overlap,
        ["BLOB", "BLOB", "INTEGER", "INTEGER", "INTEGER[]", "INTEGER[]", "INTEGER", "INTEGER"],
        "UTINYINT[]",
        type="arrow",
    )


def _keep_alive(connection: duckdb.DuckDBPyConnection, runs: list[Run]) -> None:
    """Tie the runs' lifetime to the connection's: a run may hold temporary files that the views read."""

    def rlaudit_runs() -> str:
        return ", ".join(run.path for run in runs)

    connection.create_function("rlaudit_runs", rlaudit_runs, [], "VARCHAR", side_effects=True)


def decode_experts(blob: bytes | memoryview, num_experts: int) -> np.ndarray[Any, np.dtype[np.unsignedinteger[Any]]]:
    """Expert ids of a ``routing.experts`` value, flat, as uint8 or little-endian uint16."""
    return np.frombuffer(blob, np.uint8 if schema.expert_bytes(num_experts) == 1 else np.dtype("<u2"))


def _routing_rows(experts: pa.Array, top_k: pa.Array, num_experts: pa.Array) -> pa.Array:
    """DuckDB function: one list of ``top_k`` ids for each token and layer."""
    inner: list[np.ndarray[Any, Any]] = []
    inner_lengths: list[np.ndarray[Any, Any]] = []
    outer = np.zeros(len(experts) + 1, np.int32)
    for row, (blob, k, n) in enumerate(zip(experts, top_k.to_pylist(), num_experts.to_pylist(), strict=True)):
        cells = 0
        if blob.is_valid and k and n:
            ids = decode_experts(blob.as_buffer(), n)
            cells = len(ids) // k
            inner.append(ids[: cells * k].astype(np.uint16))
            inner_lengths.append(np.full(cells, k, np.int32))
        outer[row + 1] = outer[row] + cells
    offsets = np.zeros(outer[-1] + 1, np.int32)
    if inner_lengths:
        np.cumsum(np.concatenate(inner_lengths), out=offsets[1:])
    flat = pa.array(np.concatenate(inner) if inner else np.zeros(0, np.uint16))
    return pa.ListArray.from_arrays(pa.array(outer), pa.ListArray.from_arrays(pa.array(offsets), flat))


def _routing_tail(experts: pa.Array, skip: pa.Array, tokens: pa.Array) -> pa.Array:
    """DuckDB function: a blob of ``tokens`` equal rows without its first ``skip`` rows."""
    found: list[bytes | None] = []
    for blob, first, rows in zip(experts, skip.to_pylist(), tokens.to_pylist(), strict=True):
        if not blob.is_valid or first is None or not rows:
            found.append(None)
            continue
        data = blob.as_buffer()
        found.append(data.slice(min(first, rows) * (data.size // rows)).to_pybytes())
    return pa.array(found, pa.binary())


def _routing_overlap(
    experts_a: pa.Array,
    experts_b: pa.Array,
    first_a: pa.Array,
    first_b: pa.Array,
    layers_a: pa.Array,
    layers_b: pa.Array,
    top_k: pa.Array,
    num_experts: pa.Array,
) -> pa.Array:
    """DuckDB function: for each token and layer that both sides cover (layers in a's order), how many experts both chose."""
    found = [np.zeros(0, np.uint8)]
    lengths = [0]
    columns = [column.to_pylist() for column in (first_a, first_b, layers_a, layers_b, top_k, num_experts)]
    for a, b, start_a, start_b, own, other, k, n in zip(experts_a, experts_b, *columns, strict=True):
        common = [layer for layer in own if layer in other]
        ids_a = decode_experts(a.as_buffer(), n).reshape(-1, len(own), k)
        ids_b = decode_experts(b.as_buffer(), n).reshape(-1, len(other), k)
        start, stop = max(start_a, start_b), min(start_a + len(ids_a), start_b + len(ids_b))
        span = max(0, stop - start)
        part_a = ids_a[start - start_a :][:span, [own.index(layer) for layer in common]]
        part_b = ids_b[start - start_b :][:span, [other.index(layer) for layer in common]]
        found.append(overlap(part_a, part_b).reshape(-1))
        lengths.append(lengths[-1] + len(found[-1]))
    return pa.ListArray.from_arrays(pa.array(lengths, pa.int32()), pa.array(np.concatenate(found)))


def overlap(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Size of the intersection of two sets of expert ids along the last axis (ids within a set are distinct)."""
    common = np.zeros(a.shape[:-1], np.uint8)
    for slot in range(a.shape[-1]):
        common += (a[..., slot : slot + 1] == b).any(-1)
    return common
