"""PREFIX_CACHE_STALE: an engine served calls from keys and values that older weights had computed."""

from __future__ import annotations

from collections.abc import Sequence

from rlaudit.analyzers.measured import Measured
from rlaudit.findings import Evidence, Finding

SQL = """SELECT engine_id, policy_version, policy_syncs, request_id, started, cached_tokens, len(input_tokens) AS input_length FROM requests
WHERE cached_tokens > 0 ORDER BY engine_id, started"""


def check(measured: Measured, before: Sequence[Finding]) -> list[Finding]:
    """Calls with cached prefixes that no earlier call of the same version had."""
    calls = measured.calls
    if not calls.stale_count:
        return []
    return [
        Finding(
            "PREFIX_CACHE_STALE",
            "fail",
            f"The prefix cache outlived a weight update: {calls.stale_count:,} calls took prefixes that only older weights computed.",
            (
                Evidence("calls with a prefix from before the update", calls.stale_count),
                Evidence("calls with cached prefixes that were looked at", calls.stale_looked_at),
                Evidence("tokens taken from the cache by the first one", calls.stale[0].cached, "tokens"),
                Evidence("version of the first one", calls.stale[0].version),
            ),
            {"requests": [stale.request_id for stale in calls.stale]},
            SQL,
            (
                "Flush the prefix cache with every weight update (SGLang: flush_cache; vLLM: reset_prefix_cache, or "
                "pause_generation(clear_cache=True)).",
            ),
        )
    ]
