"""ROUTING_RECOMPUTED: calls that were put back and computed anew while the weights changed, so that old tokens carry new routing."""

from __future__ import annotations

from collections.abc import Sequence

from rlaudit.analyzers.measured import Measured
from rlaudit.findings import Evidence, Finding

SQL = """SELECT request_id, engine_id, retractions, version_spans FROM requests WHERE retractions > 0 AND len(version_spans) > 1
ORDER BY started"""


def check(measured: Measured, before: Sequence[Finding]) -> list[Finding]:
    """Retracted calls that span several versions."""
    retracted = measured.calls.retracted
    if not retracted:
        return []
    routed = bool(measured.run.segments("routing"))
    return [
        Finding(
            "ROUTING_RECOMPUTED",
            "warn" if routed else "info",
            f"{len(retracted):,} engine call(s) were retracted across a weight update: log-probabilities of the earlier tokens are the old "
            "weights', their keys, values and routing the new ones'.",
            (
                Evidence("calls", len(retracted)),
                Evidence("versions of the first", ", ".join(retracted[0][1])),
                Evidence("routing recorded", routed),
            ),
            {"requests": [name for name, _ in retracted[:10]]},
            SQL,
            (
                "Don't replay routing of the spans before the update, or pause in place of retracting (SGLang: pause_generation, mode "
                "in_place, which keeps stale keys and values instead).",
            ),
        )
    ]
