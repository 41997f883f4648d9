"""What capture says it did not record: rows dropped, rows skipped by sampling, processes that stopped."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from rlaudit.run import Run

NOT_IN_SAMPLE = "not in the sample"
"""The reason under which capture counts rows that ``--sample`` left out: a choice, not a loss."""


@dataclass(slots=True)
class Losses:
    """dropped: table to reason to rows. stopped: reasons for which capture stopped in some process."""

    dropped: dict[str, dict[str, int]] = field(default_factory=dict)
    stopped: list[str] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """Rows lost, without those that sampling left out."""
        return sum(count for reasons in self.dropped.values() for reason, count in reasons.items() if reason != NOT_IN_SAMPLE)


def read_losses(run: Run) -> Losses:
    """From the run's events: each process's last heartbeat is its balance; ``rows_dropped`` events count on top."""
    events = run.read("events", ["time", "process", "kind", "name", "message", "count", "detail"]).sort_by("time").to_pylist()
    found = Losses()
    last: dict[str, dict[str, dict[str, int]]] = {}
    for event in events:
        if event["kind"] == "heartbeat" and event["detail"]:
            last[event["process"]] = json.loads(event["detail"]).get("dropped", {})
        elif event["kind"] == "rows_dropped":
            reasons = found.dropped.setdefault(event["name"] or "rows", {})
            reason = event["message"] or "dropped"
            reasons[reason] = reasons.get(reason, 0) + (event["count"] or 1)
        elif event["kind"] == "capture_stopped":
            found.stopped.append(event["message"] or event["name"] or "unknown reason")
    for dropped in last.values():
        for table, by_reason in dropped.items():
            reasons = found.dropped.setdefault(table, {})
            for reason, count in by_reason.items():
                reasons[reason] = reasons.get(reason, 0) + count
    return found
