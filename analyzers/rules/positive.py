"""LOGP_POSITIVE: values above 0 that can't be log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence

from rlaudit.analyzers.measured import Measured
from rlaudit.findings import Evidence, Finding

SQL = """SELECT step, sequence_id, position, rollout_logp, trainer_logp FROM tokens
WHERE phase = 'train' AND comparable AND greatest(rollout_logp, trainer_logp) > 1e-3 ORDER BY ALL LIMIT 1000"""


def check(measured: Measured, before: Sequence[Finding]) -> list[Finding]:
    """More than rounding above 0 on either side."""
    counts = measured.all_tokens().counts
    rollout, trainer = counts.positive[0], counts.positive[1]
    if not rollout and not trainer:
        return []
    return [
        Finding(
            "LOGP_POSITIVE",
            "fail",
            f"{rollout + trainer:,} recorded log-probabilities are above 0, so they are something else (logits, rewards, negated values).",
            (Evidence("on the rollout side", rollout, "tokens"), Evidence("on the trainer side", trainer, "tokens")),
            sql=SQL,
            next=("Record log_softmax(logits / temperature) gathered at the sampled token.",),
        )
    ]
