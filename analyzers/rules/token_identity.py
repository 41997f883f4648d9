"""TOKEN_MISMATCH: the trainer consumed other tokens than the engine was given or returned (token-in, token-out broken)."""

from __future__ import annotations

from collections.abc import Sequence

from rlaudit.analyzers.identity import TokenMismatch
from rlaudit.analyzers.measured import Measured
from rlaudit.findings import Evidence, Finding

SQL = """SELECT step, sequence_id, turn, request_id, tokens_equal, input_equal, output_length, len(consumed_tokens) AS consumed_length
FROM turns WHERE NOT (tokens_equal AND input_equal) ORDER BY ALL"""


def _kinds(kinds: dict[str, int]) -> str | None:
    return ", ".join(f"{kind}: {count:,}" for kind, count in sorted(kinds.items(), key=lambda item: -item[1])) or None


def _effect(example: TokenMismatch) -> tuple[Evidence, ...]:
    if example.after is None:
        return ()
    return (
        Evidence("mean |Δ log p| of the example before the difference", example.before, "nats"),
        Evidence("mean |Δ log p| of the example after it", example.after, "nats"),
    )


def check(measured: Measured, before: Sequence[Finding]) -> list[Finding]:
    """Outputs and inputs of linked engine calls against the trainer's tokens."""
    identity = measured.identity
    found = []
    if identity.output_mismatches or identity.input_mismatches:
        first = identity.examples[0]
        where = f"step {first.step}, {first.sequence_id}, turn {first.turn}, {first.side}: " + (
            f"first difference at {'response' if first.side == 'output' else 'input'} position {first.position}"
            if first.position is not None
            else f"{first.engine_length} tokens at the engine, {first.trainer_length} in the trainer"
        )
        found.append(
            Finding(
                "TOKEN_MISMATCH",
                "fail",
                f"The trainer consumed other tokens than the engine saw, in "
                f"{max(identity.output_mismatches, identity.input_mismatches):,} of {identity.links:,} engine calls.",
                (
                    Evidence("calls whose output differs", identity.output_mismatches),
                    Evidence("calls whose input differs", identity.input_mismatches),
                    Evidence("calls compared", identity.outputs_compared),
                    Evidence("kinds of difference", _kinds(identity.kinds)),
                    Evidence("example", where),
                    *_effect(first),
                ),
                {"steps": sorted({e.step for e in identity.examples}), "sequences": [e.sequence_id for e in identity.examples]},
                SQL,
                (
                    "Train on the engine's own token ids; never decode and tokenise again.",
                    "Input differs only: the chat template, a special token or a truncation differs between rollout and training.",
                ),
            )
        )
    if identity.ambiguous:
        found.append(
            Finding(
                "LINKS_AMBIGUOUS",
                "info",
                f"{identity.ambiguous:,} of {identity.links:,} links between engine calls and sequences fit several calls equally well.",
                (Evidence("ambiguous links", identity.ambiguous),),
                sql="SELECT * FROM links WHERE ambiguous ORDER BY step, sequence_id",
            )
        )
    return found
