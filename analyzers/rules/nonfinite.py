"""NONFINITE_LOGP: NaN or infinite log-probabilities of sampled tokens."""

from __future__ import annotations

from collections.abc import Sequence

from rlaudit.analyzers.measured import Measured
from rlaudit.findings import Evidence, Finding

SQL = """SELECT step, sequence_id, position, token_id, rollout_logp, trainer_logp FROM tokens
WHERE phase = 'train' AND is_sampled AND NOT (isfinite(rollout_logp) AND isfinite(trainer_logp)) ORDER BY ALL LIMIT 1000"""


def check(measured: Measured, before: Sequence[Finding]) -> list[Finding]:
    """Any of them fails: a token that was sampled has a finite log-probability."""
    counts = measured.all_tokens().counts
    rollout, trainer = counts.nonfinite[0], counts.nonfinite[1]
    if not rollout and not trainer:
        return []
    steps = sorted({key.step for key, (stats, _) in measured.main.by_key.items() if stats.counts.nonfinite[0] or stats.counts.nonfinite[1]})
    return [
        Finding(
            "NONFINITE_LOGP",
            "fail",
            f"{rollout + trainer:,} log-probabilities of sampled tokens are NaN or infinite; they are left out of every number.",
            (Evidence("on the rollout side", rollout, "tokens"), Evidence("on the trainer side", trainer, "tokens")),
            {"steps": steps[:20]},
            SQL,
            (
                "Minus infinity on the trainer's side: it masks tokens that the engine may sample (vocabulary padding, a "
                "filter on one side only).",
                "NaN on the rollout side: prefix caching with a quantised KV cache in some engine versions; rerun with prefix caching off.",
            ),
        )
    ]
