"""LEN_MISMATCH: a sequence whose tokens, log-probabilities and mask differ in length. It is compared with nothing: where a token is
missing in the middle, an aligned prefix is wrong from there on."""

from __future__ import annotations

from collections.abc import Sequence

from rlaudit.analyzers.measured import Measured
from rlaudit.findings import Evidence, Finding

SQL = """SELECT q.step, q.sequence_id, s.source, s."update", len(q.response_tokens) AS response, len(s.logprobs) AS logprobs,
       len(q.sampled_mask) AS mask
FROM sequences q JOIN whole_scores s ON q.attempt = s.attempt AND q.step = s.step AND q.sequence_id = s.sequence_id
WHERE q.phase = 'train' AND s.source IN ('rollout', 'trainer', 'update')
  AND (len(s.logprobs) IS DISTINCT FROM len(q.response_tokens) OR len(q.sampled_mask) <> len(q.response_tokens))
ORDER BY q.step, q.sequence_id"""


def check(measured: Measured, before: Sequence[Finding]) -> list[Finding]:
    """Sequences withheld for their lengths."""
    count, examples = measured.joined.length_mismatches, measured.joined.examples
    if not count:
        return []
    first = examples[0]
    sides = {"rollout log-probabilities": first.rollout, "trainer log-probabilities": first.trainer, "mask": first.mask}
    wrong = [
        f"{length if length is not None else 'broken'} {name}"
        for name, length in sides.items()
        if length != first.response and (name != "mask" or length is not None)
    ]
    return [
        Finding(
            "LEN_MISMATCH",
            "fail",
            f"{count:,} of {measured.joined.joined:,} sequences have log-probabilities or masks of another length than their "
            f"response; they are left out.",
            (
                Evidence("sequences left out", count),
                Evidence("example", f"step {first.step}, {first.sequence_id}: {first.response} tokens, {', '.join(wrong)}"),
            ),
            {"steps": sorted({example.step for example in examples}), "sequences": [example.sequence_id for example in examples]},
            SQL,
            (
                "One too few: the engine dropped the end-of-sequence or stop token that the trainer kept (or the other way round).",
                "Compare turns (SELECT * FROM turns) to see where tokens were added or cut.",
            ),
        )
    ]
