"""LOGP_CONSTANT_ZERO: log-probabilities of exactly 0 that are placeholders, not certainty.

Not to be confused with tokens that both sides are certain of: a 0 counts only where the other side puts the token below 0.999.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlaudit.analyzers.measured import Measured
from rlaudit.analyzers.thresholds import BAD_ZERO_SHARE
from rlaudit.findings import Evidence, Finding

SQL = """SELECT step, sequence_id, position, rollout_logp, trainer_logp FROM tokens
WHERE phase = 'train' AND comparable AND least(rollout_logp, trainer_logp) < ln(0.999) AND (rollout_logp = 0 OR trainer_logp = 0)
ORDER BY ALL LIMIT 1000"""
ALL_ZERO_SQL = """SELECT step, count(*) AS tokens
FROM tokens WHERE phase = 'train' AND comparable AND rollout_logp = 0 AND trainer_logp = 0
GROUP BY ALL ORDER BY ALL"""


def check(measured: Measured, before: Sequence[Finding]) -> list[Finding]:
    """A share of contradicted zeros above BAD_ZERO_SHARE, or nothing but zeros on both sides."""
    total = measured.all_tokens()
    counts, tokens = total.counts, total.tokens
    if tokens == 0:
        return []
    if counts.zero[0] == tokens and counts.zero[1] == tokens:
        return [
            Finding(
                "LOGP_CONSTANT_ZERO",
                "fail",
                "Every log-probability on both sides is exactly 0: placeholders were compared with placeholders.",
                (Evidence("tokens", tokens, "tokens"),),
                sql=ALL_ZERO_SQL,
                next=("Look where the loop fills log-probabilities in; null, not 0, stands for a missing one.",),
            )
        ]
    found = []
    for side, zeros in zip(("rollout", "trainer"), counts.bad_zero, strict=True):
        if zeros / tokens > BAD_ZERO_SHARE:
            found.append(
                Finding(
                    "LOGP_CONSTANT_ZERO",
                    "fail",
                    f"{zeros / tokens:.1%} of the {side}'s log-probabilities are exactly 0 where the other side is not "
                    f"certain: they are placeholders.",
                    (Evidence("contradicted zeros", zeros, "tokens"), Evidence("tokens compared", tokens, "tokens")),
                    {"side": side},
                    SQL,
                    (
                        "Missing values were padded with 0.0: keep them null, and exclude them from the loss.",
                        "With speculative decoding, some engines return 0 for accepted draft tokens: compare with it switched off.",
                    ),
                )
            )
    return found
