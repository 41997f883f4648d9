"""LOGP_ALTERED: the rollout log-probabilities that the trainer uses are not those that the engine returned."""

from __future__ import annotations

from collections.abc import Sequence

from rlaudit.analyzers.measured import Measured
from rlaudit.analyzers.thresholds import RETURNED_ROUNDING
from rlaudit.findings import Evidence, Finding

SQL = """SELECT step, sequence_id, position, logp_a AS rollout, logp_b AS engine, delta FROM pairs
WHERE source_a = 'rollout' AND source_b = 'engine' AND abs(delta) > 1e-6 ORDER BY abs(delta) DESC LIMIT 100"""


def check(measured: Measured, before: Sequence[Finding]) -> list[Finding]:
    """Needs engine calls with log-probabilities beside rollout scores of the trainer's own."""
    values = measured.returned.lag_class("equal", "unknown", "other").metrics()
    largest, mean = values.get("logp_diff_max"), values.get("logp_diff_mean")
    if largest is None or largest <= 1e-6:
        return []
    tokens = measured.returned.lag_class("equal", "unknown", "other").tokens
    rounded = largest <= RETURNED_ROUNDING
    title = (
        "The trainer keeps the engine's log-probabilities in a narrower format than the engine returned them."
        if rounded
        else "The rollout log-probabilities that the trainer uses are not those that the engine returned."
    )
    evidence = (
        Evidence("tokens compared", tokens, "tokens"),
        Evidence("mean |difference|", mean, "nats"),
        Evidence("largest |difference|", largest, "nats"),
    )
    remedy = "Look for what lies between engine and trainer: a cast, a shift, a padding value, log-probabilities of another call."
    return [Finding("LOGP_ALTERED", "info" if rounded else "fail", title, evidence, sql=SQL, next=(remedy,))]
