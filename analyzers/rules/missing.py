"""LOGP_MISSING: sampled tokens for which a side recorded no log-probability (null, not 0)."""

from __future__ import annotations

from collections.abc import Sequence

from rlaudit.analyzers.measured import Measured
from rlaudit.analyzers.thresholds import MISSING_SHARE_WARN
from rlaudit.findings import Evidence, Finding

SQL = """SELECT step, sequence_id, count(*) FILTER (WHERE rollout_logp IS NULL) AS rollout_missing, count(*) FILTER (WHERE
trainer_logp IS NULL) AS trainer_missing
FROM tokens WHERE phase = 'train' AND is_sampled AND (rollout_logp IS NULL OR trainer_logp IS NULL)
GROUP BY ALL ORDER BY ALL"""


def check(measured: Measured, before: Sequence[Finding]) -> list[Finding]:
    """Nulls among the sampled tokens of compared sequences."""
    total = measured.all_tokens()
    rollout, trainer = total.counts.missing[0], total.counts.missing[1]
    if not rollout and not trainer:
        return []
    missing = max(rollout, trainer) / (total.tokens + max(rollout, trainer))
    return [
        Finding(
            "LOGP_MISSING",
            "warn" if missing > MISSING_SHARE_WARN else "info",
            f"{max(rollout, trainer):,} sampled tokens ({missing:.2%}) have no log-probability on one side and are left out.",
            (Evidence("missing on the rollout side", rollout, "tokens"), Evidence("missing on the trainer side", trainer, "tokens")),
            sql=SQL,
            next=("Look where they lie (query above): a whole turn, the last token, or scattered tokens that the engine could not score.",),
        )
    ]
