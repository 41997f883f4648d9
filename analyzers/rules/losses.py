"""ROWS_DROPPED, CAPTURE_STOPPED: capture itself says that it did not record everything."""

from __future__ import annotations

from collections.abc import Sequence

from rlaudit.analyzers.capture_losses import NOT_IN_SAMPLE
from rlaudit.analyzers.measured import Measured
from rlaudit.findings import Evidence, Finding

SQL = """SELECT time, process, kind, name, message, count, detail FROM events
WHERE kind IN ('rows_dropped', 'capture_stopped', 'heartbeat') ORDER BY time"""


def check(measured: Measured, before: Sequence[Finding]) -> list[Finding]:
    """Rows dropped for any reason but sampling, and processes in which capture stopped."""
    losses = measured.losses
    found = []
    if losses.rows:
        evidence = [
            Evidence(f"{table}: {reason}", count, "rows")
            for table, reasons in sorted(losses.dropped.items())
            for reason, count in sorted(reasons.items())
            if reason != NOT_IN_SAMPLE
        ]
        found.append(
            Finding(
                "ROWS_DROPPED",
                "warn",
                f"Capture dropped {losses.rows:,} rows: the numbers below are of what is left.",
                tuple(evidence),
                sql=SQL,
                next=(
                    "Capture again with --lossless, which waits instead of dropping.",
                    "Capture less: --exclude a table, or --sample a share of the sequences.",
                ),
            )
        )
    if losses.stopped:
        found.append(
            Finding(
                "CAPTURE_STOPPED",
                "warn",
                f"Capture stopped before the run ended, in {len(losses.stopped)} process(es): {losses.stopped[0]}.",
                (Evidence("processes that stopped", len(losses.stopped)),),
                sql=SQL,
                next=("Free disk space or raise --max-bytes, then capture again.",),
            )
        )
    return found
