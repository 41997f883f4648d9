"""BITWISE_EQUAL, VACUOUS_COMPARISON: rollout and trainer log-probabilities are the same bits everywhere."""

from __future__ import annotations

from collections.abc import Sequence

from rlaudit.analyzers.measured import Measured
from rlaudit.findings import Evidence, Finding

SQL = """SELECT step, count(*) AS tokens, count(*) FILTER (WHERE delta = 0) AS equal
FROM tokens WHERE comparable AND phase = 'train' GROUP BY step ORDER BY step"""


def check(measured: Measured, before: Sequence[Finding]) -> list[Finding]:
    """Good news, unless the trainer's own second evaluation differs: then the first was probably copied from the rollout."""
    stats, floor = measured.at_basis(), measured.floor_stats()
    if stats.tokens == 0 or stats.counts.equal_bits != stats.tokens or any(f.code == "LOGP_CONSTANT_ZERO" for f in before):
        return []
    evidence = (Evidence("tokens compared", stats.tokens, "tokens"), Evidence("equal bits", stats.counts.equal_bits, "tokens"))
    if floor.tokens and floor.counts.equal_bits < floor.tokens:
        differing = floor.tokens - floor.counts.equal_bits
        return [
            Finding(
                "VACUOUS_COMPARISON",
                "warn",
                "The trainer's log-probabilities equal the rollout's bit for bit, but not the trainer's own of the update: "
                "they may be copies.",
                (*evidence, Evidence("tokens that differ between the trainer's two evaluations", differing, "tokens")),
                sql=SQL,
                next=("See whether the loop recomputes old log-probabilities or takes the rollout's (verl: bypass mode).",),
            )
        ]
    return [Finding("BITWISE_EQUAL", "info", "Rollout and trainer log-probabilities are equal bit for bit.", evidence, sql=SQL)]
