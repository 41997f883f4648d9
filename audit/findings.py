"""Findings and the verdict that follows from them.

A finding says what is wrong, where, how it is known and what to try next. The verdict is a
function of the findings and of how much could be checked: a run in which nothing could be compared is
INCONCLUSIVE, never OK.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Severity = Literal["fail", "warn", "info"]
Status = Literal["OK", "WARN", "FAIL", "INCONCLUSIVE"]


@dataclass(frozen=True, slots=True)
class Evidence:
    """One number or fact behind a finding. ``unit`` is None for counts and labels."""

    label: str
    value: float | int | str | bool | None
    unit: str | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that the audit found.

    code: stable identifier in capitals, documented in ``docs/findings.md``.
    where: what it concerns, for example ``{"steps": [3, 9], "layers": [2]}``; empty for the whole run.
    sql: a query that shows the evidence, as ``rlaudit query RUN`` takes it.
    next: what to try, most useful first.
    """

    code: str
    severity: Severity
    title: str
    evidence: tuple[Evidence, ...] = ()
    where: dict[str, Any] = field(default_factory=dict)
    sql: str | None = None
    next: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """The audit's answer: a status, one sentence, and the reasons for it."""

    status: Status
    sentence: str
    reasons: tuple[str, ...] = ()


def judge(findings: Sequence[Finding], *, compared_tokens: int, basis: str, withheld: Sequence[str] = ()) -> Verdict:
    """The verdict that follows from ``findings``.

    compared_tokens: response tokens for which both a rollout and a trainer log-probability could be compared.
    basis: what an OK rests on, one clause ("12,288 tokens of 10 steps compared, largest |Δ log p| 1e-5").
    withheld: reasons for which comparisons could not be made.
    """
    if compared_tokens == 0:
        return Verdict(
            "INCONCLUSIVE", "Nothing could be compared.", tuple(withheld) or ("No token has both a rollout and a trainer log-probability.",)
        )
    for severity, status in (("fail", "FAIL"), ("warn", "WARN")):
        hits = [finding for finding in findings if finding.severity == severity]
        if hits:
            more = f" (and {len(hits) - 1} more)" if len(hits) > 1 else ""
            return Verdict(status, hits[0].title + more, tuple(f"{f.code}: {f.title}" for f in findings if f.severity != "info"))  # type: ignore[arg-type]
    return Verdict("OK", f"Rollout and trainer agree: {basis}.", tuple(withheld))
