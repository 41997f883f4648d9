"""PARTS_MISSING: an evaluation that parallel ranks wrote in parts is not whole, so it was left out of every comparison.

Not a length mismatch: the parts that are there are as they should be. A rank was killed, its rows were dropped, or its node's run was
not merged.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlaudit.analyzers.measured import Measured
from rlaudit.findings import Evidence, Finding

SQL = """WITH parts AS (
    SELECT 'scores' AS of, step, sequence_id, source, "update", parts, rank FROM scores WHERE parts > 1
    UNION ALL
    SELECT 'routing' AS of, step, sequence_id, source, "update", parts, rank FROM routing WHERE parts > 1
)
SELECT of, step, sequence_id, source, "update", max(parts) AS parts, count(*) AS found, list(rank ORDER BY rank) AS ranks
FROM parts GROUP BY of, step, sequence_id, source, "update" HAVING count(*) < max(parts) ORDER BY step, sequence_id LIMIT 20"""


def check(measured: Measured, before: Sequence[Finding]) -> list[Finding]:
    """Any evaluation in parts that lacks one."""
    parts = measured.parts
    if not parts.incomplete:
        return []
    ranks = [rank for rank, _ in parts.by_rank.most_common()]
    whose = f"; missing are parts of rank {', '.join(map(str, ranks))}" if ranks else ""
    return [
        Finding(
            "PARTS_MISSING",
            "warn",
            f"{parts.incomplete:,} of {parts.evaluations:,} evaluations that parallel ranks wrote in parts are not whole "
            f"and were not compared{whose}.",
            tuple(
                Evidence(
                    f"step {e.step}, {e.sequence_id}, {e.table} of {e.source}",
                    f"{e.have} of {e.want} parts, ranks missing: {e.ranks or '?'}",
                )
                for e in parts.examples
            ),
            where={"steps": sorted(parts.steps), **({"ranks": ranks} if ranks else {})},
            sql=SQL,
            next=(
                "Look at the coverage of the capture (rlaudit info RUN): a rank that was killed or never hooked, or rows dropped.",
                "Nodes without a shared disk have runs of their own: rlaudit merge puts them together.",
            ),
        )
    ]
