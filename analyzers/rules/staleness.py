"""STALENESS: tokens whose trainer evaluation used newer weights than their rollout; their difference is engine plus policy change."""

from __future__ import annotations

from collections.abc import Sequence

from rlaudit.analyzers.measured import Measured
from rlaudit.findings import Evidence, Finding

SQL = """SELECT lag, count(*) AS tokens, avg(abs(delta)) AS logp_diff_mean, avg(k3(delta)) AS k3 FROM tokens
WHERE comparable AND phase = 'train' GROUP BY lag ORDER BY lag"""


def check(measured: Measured, before: Sequence[Finding]) -> list[Finding]:
    """Information only: staleness is a choice of the algorithm. Its numbers are kept out of every judgement on the engine."""
    stale = measured.main.lag_class("other")
    if not stale.tokens:
        return []
    lags = sorted({key.lag for key in measured.main.by_key if key.lag})
    equal = measured.main.lag_class("equal").metrics()
    values = stale.metrics()
    total = measured.all_tokens().tokens
    return [
        Finding(
            "STALENESS",
            "info",
            f"{stale.tokens / total:.0%} of the compared tokens were trained on {_optimizer_steps(lags)} after they were "
            f"sampled; they are kept apart.",
            (
                Evidence("tokens at another policy version", stale.tokens, "tokens"),
                Evidence("largest lag", max(lags), "optimizer steps"),
                Evidence("mean |Δ log p| at another version (engine + staleness)", values.get("logp_diff_mean"), "nats"),
                Evidence("mean |Δ log p| at equal version", equal.get("logp_diff_mean"), "nats"),
            ),
            {"lags": lags[:20]},
            SQL,
        )
    ]


def _optimizer_steps(lags: list[int]) -> str:
    low, high = min(lags), max(lags)
    return f"{low} to {high} optimizer steps" if low != high else f"{low} optimizer step{'s' if low != 1 else ''}"
