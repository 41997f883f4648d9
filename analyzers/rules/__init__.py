"""The rules: what the audit looks for, in the order in which it must be looked for.

Inputs before statistics: a wrong mask is no numerical mismatch. Each rule is one small module with a function ``check(measured, before)``
that returns findings; ``before`` are the findings of the rules above it, so that a later rule can keep quiet about what an earlier
one explains. The order is integrity, tokens, masks, log-probability semantics, versions, routing, numerics.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rlaudit.analyzers.measured import Measured
from rlaudit.analyzers.rules import (
    bitwise,
    duplicates,
    importance_ratio,
    joins,
    lengths,
    losses,
    missing,
    nonfinite,
    parts_missing,
    positive,
    precision,
    prefix_cache,
    retraction,
    returned,
    routing_noise,
    routing_rows,
    semantics,
    staleness,
    token_identity,
    weights,
    zeros,
)
from rlaudit.findings import Finding


class Rule(Protocol):
    """A module with one check."""

    def check(self, measured: Measured, before: Sequence[Finding]) -> list[Finding]: ...


INTEGRITY: tuple[Rule, ...] = (losses, joins, parts_missing, duplicates, missing)
TOKENS: tuple[Rule, ...] = (lengths, token_identity)
SEMANTICS: tuple[Rule, ...] = (nonfinite, positive, zeros, semantics, returned, importance_ratio)
VERSIONS: tuple[Rule, ...] = (weights, prefix_cache, staleness)
ROUTING: tuple[Rule, ...] = (routing_rows, retraction)
NUMERICS: tuple[Rule, ...] = (precision, routing_noise, bitwise)
RULES = (*INTEGRITY, *TOKENS, *SEMANTICS, *VERSIONS, *ROUTING, *NUMERICS)


def find(measured: Measured) -> tuple[Finding, ...]:
    """All findings, in the order of the rules, the severest first."""
    found: list[Finding] = []
    for rule in RULES:
        found += rule.check(measured, tuple(found))
    return tuple(sorted(found, key=lambda finding: ("fail", "warn", "info").index(finding.severity)))
