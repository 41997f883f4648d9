"""JOIN_INCOMPLETE: sequences of which one side's log-probabilities are missing, so that nothing could be compared."""

from __future__ import annotations

from collections.abc import Sequence

from rlaudit.analyzers.measured import Measured
from rlaudit.findings import Evidence, Finding

SQL = """SELECT q.step, q.sequence_id,
       count(*) FILTER (WHERE s.source = 'rollout') AS rollout_scores,
       count(*) FILTER (WHERE s.source IN ('trainer', 'update')) AS trainer_scores
FROM sequences q LEFT JOIN scores s ON q.attempt = s.attempt AND q.step = s.step AND q.sequence_id = s.sequence_id
WHERE q.phase = 'train' AND len(q.response_tokens) > 0
GROUP BY q.attempt, q.step, q.sequence_id
HAVING rollout_scores = 0 OR trainer_scores = 0
ORDER BY q.step, q.sequence_id"""

ORPHANS_SQL = """SELECT s.step, s.sequence_id, s.source FROM scores s
ANTI JOIN sequences q ON s.attempt = q.attempt AND s.step = q.step AND s.sequence_id = q.sequence_id ORDER BY ALL"""


def check(measured: Measured, before: Sequence[Finding]) -> list[Finding]:
    """A warning where sequences of training can't be compared; only information where all of them lie in the run's last step."""
    joined = measured.joined
    found = []
    missing = sum(joined.unscored_by_step.values())
    if missing:
        steps = sorted(joined.unscored_by_step)
        at_the_end = steps == [max(measured.step_numbers)]
        title = f"{missing:,} of {joined.sequences:,} training sequences can't be compared: one side's log-probabilities are missing"
        found.append(
            Finding(
                "JOIN_INCOMPLETE",
                "info" if at_the_end and joined.joined else "warn",
                title + (" (all in the last step)." if at_the_end else "."),
                (
                    Evidence("sequences without rollout log-probabilities", joined.without_rollout),
                    Evidence("sequences without trainer log-probabilities", joined.without_trainer),
                    Evidence("sequences with neither", joined.without_both),
                    Evidence("sequences compared", joined.joined),
                ),
                {"steps": steps[:20], "sequences": [name for _, name in joined.unscored]},
                SQL,
                (
                    "Trainer side missing: rows filtered before the update, or a forward that no hook saw (rlaudit info "
                    "lists hooks that did not fire).",
                    "Rollout side missing: ask the engine for log-probabilities (verl: rollout.calculate_log_probs).",
                ),
            )
        )
    if measured.orphan_scores:
        found.append(
            Finding(
                "SCORES_WITHOUT_SEQUENCE",
                "warn",
                f"{measured.orphan_scores:,} score rows belong to no recorded sequence.",
                (Evidence("score rows", measured.orphan_scores),),
                sql=ORPHANS_SQL,
                next=("Sequence ids or steps of the two record calls differ, or the process that sampled was not captured.",),
            )
        )
    return found
