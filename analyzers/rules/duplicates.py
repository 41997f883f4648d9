"""DUPLICATE_ROWS: the same key recorded twice, where only the first row counts."""

from __future__ import annotations

from collections.abc import Sequence

from rlaudit.analyzers.measured import Measured
from rlaudit.findings import Evidence, Finding

SQL = """SELECT attempt, step, sequence_id, source, "update", first_position, count(*) AS rows FROM scores
GROUP BY ALL HAVING count(*) > 1 ORDER BY ALL"""


def check(measured: Measured, before: Sequence[Finding]) -> list[Finding]:
    """Sequences or scores with equal keys."""
    sequences, scores = measured.duplicate_sequences, measured.joined.duplicate_scores
    if not sequences and not scores:
        return []
    return [
        Finding(
            "DUPLICATE_ROWS",
            "warn",
            f"{sequences + scores:,} rows repeat the key of another row; the first of each counts, queries see all.",
            (Evidence("repeated sequences rows", sequences), Evidence("repeated scores rows", scores)),
            sql=SQL,
            next=(
                "Sequence ids must be unique within a step and attempt.",
                "Two processes recorded the same sequence: record on one rank only.",
            ),
        )
    ]
