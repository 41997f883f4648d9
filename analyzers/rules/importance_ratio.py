"""IMPORTANCE_RATIO_OFF: the rollout's log-probabilities are not those of the law that sampled the tokens.

For tokens drawn from the rollout policy the mean of exp(Δ) is 1 in expectation, whatever the trainer computes: numerics, stale
weights and the trainer's own errors all leave it at 1. A mean off 1 by more than its sequence-clustered interval means that the recorded
rollout log-probability is of another law (temperature, truncation, penalty, shifted tokens). The converse doesn't hold: a trainer-side
temperature or truncation with raw log-probabilities leaves the mean at 1.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlaudit.analyzers.measured import Measured
from rlaudit.analyzers.thresholds import INTERVAL_STANDARD_ERRORS, RATIO_MEAN_HIGH, RATIO_MEAN_LOW
from rlaudit.findings import Evidence, Finding

SQL = """SELECT step, count(*) AS tokens, avg(importance_ratio(delta)) AS ratio_mean, avg(k1(delta)) AS k1, avg(k3(delta)) AS k3,
avg((delta > 0)::INT) AS share_positive
FROM tokens WHERE comparable AND phase = 'train' GROUP BY step ORDER BY step"""


def check(measured: Measured, before: Sequence[Finding]) -> list[Finding]:
    """The mean ratio's whole interval lies outside the band."""
    stats = measured.at_basis()
    mean, error = stats.metrics().get("ratio_mean"), stats.ratio_mean_error()
    if mean is None or error is None:
        return []
    low, high = mean - INTERVAL_STANDARD_ERRORS * error, mean + INTERVAL_STANDARD_ERRORS * error
    if high >= RATIO_MEAN_LOW and low <= RATIO_MEAN_HIGH:
        return []
    values = stats.metrics()
    return [
        Finding(
            "IMPORTANCE_RATIO_OFF",
            "fail",
            f"The rollout's log-probabilities are not of the distribution that sampled the tokens: the mean importance ratio "
            f"is {mean:.3g}, not 1.",
            (
                Evidence("mean importance ratio", mean),
                Evidence("interval, low (sequences as units, 3 standard errors)", low),
                Evidence("interval, high", high),
                Evidence("k1", values["k1"], "nats"),
                Evidence("k3", values["k3"], "nats"),
                Evidence("tokens", stats.tokens, "tokens"),
            ),
            sql=SQL,
            next=(
                "Above 1: the engine returned log-probabilities before temperature (vLLM's raw_logprobs) or of shifted tokens.",
                "Below 1: log-probabilities were renormalised after top-p, top-k or min-p on the rollout side only.",
                "Look at the sampling parameters: SELECT DISTINCT temperature, top_p, top_k, min_p, repetition_penalty FROM sequences",
            ),
        )
    ]
