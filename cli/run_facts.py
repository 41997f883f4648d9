"""What ``rlaudit info`` says beyond the manifest and the capture's summary: sizes and step ranges of the tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlaudit import schema

if TYPE_CHECKING:
    from rlaudit.run import Run

ROWS_AND_STEPS = 'SELECT count(*), min("step"), max("step"), count(DISTINCT "step") FROM {table}'
ROWS = "SELECT count(*) FROM {table}"


@dataclass(frozen=True, slots=True)
class TableFacts:
    """Size of one table. first_step, last_step, steps: None for a table without a step column or without rows."""

    name: str
    rows: int
    bytes: int
    files: int
    first_step: int | None
    last_step: int | None
    steps: int | None


def table_facts(run: Run) -> tuple[TableFacts, ...]:
    """Rows, bytes, files and steps of every table. QueryError names a segment that can't be read."""
    from rlaudit.query import execute

    connection = run.connect()
    facts = []
    for table in schema.TABLES:
        stepped = any(column.name == "step" for column in table.columns)
        counted = execute(connection, (ROWS_AND_STEPS if stepped else ROWS).format(table=table.name)).fetchone() or (0,)
        first, last, steps = counted[1:] if stepped and counted[3] else (None, None, None)
        facts.append(TableFacts(table.name, counted[0], run.bytes(table.name), len(run.segments(table.name)), first, last, steps))
    connection.close()
    return tuple(facts)
