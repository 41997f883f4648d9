"""The report as JSON, for scripts: a stable schema (``docs/report.schema.json``), strictly valid.

Null is a value that is missing. JSON has no NaN and no infinities, so those are the strings "NaN", "Infinity" and
"-Infinity" (as in protobuf's JSON mapping), here and in ``rlaudit query --format json``.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Any

from rlaudit.analyzers.results import Report
from rlaudit.findings import Finding


def render(report: Report) -> str:
    """The report as indented JSON text that ends with a newline."""
    return json.dumps(strict(document(report)), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def document(report: Report) -> dict[str, Any]:
    """The report as the schema describes it; floats may still be non-finite (see ``strict``)."""
    return {
        "schema_version": report.schema_version,
        "rlaudit_version": report.rlaudit_version,
        "run": report.run,
        "facts": report.facts,
        "verdict": {**asdict(report.verdict), "reasons": list(report.verdict.reasons)},
        "findings": [_finding(finding) for finding in report.findings],
        "coverage": asdict(report.coverage),
        "metrics": {
            "overall": report.overall,
            "by_step": [asdict(step) for step in report.by_step],
            "noise_floor": asdict(report.noise_floor) if report.noise_floor else None,
            "definitions": [asdict(definition) for definition in report.definitions],
        },
        "routing": {
            "by_layer": [asdict(layer) for layer in report.routing_by_layer],
            "by_step": [asdict(step) for step in report.routing_by_step],
            "effect": asdict(report.routing_effect) if report.routing_effect else None,
        },
        "worst_sequences": [asdict(sequence) for sequence in report.worst_sequences],
        "framework_checks": [asdict(check) for check in report.framework_checks],
        "queries": [{"title": title, "sql": sql} for title, sql in report.queries.items()],
        "withheld": list(report.withheld),
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "code": finding.code,
        "severity": finding.severity,
        "title": finding.title,
        "where": finding.where,
        "evidence": [asdict(evidence) for evidence in finding.evidence],
        "sql": finding.sql,
        "next": list(finding.next),
    }


def strict(value: Any) -> Any:
    """``value`` with non-finite floats as strings, so that any JSON parser takes it.

    >>> strict({"a": [float("nan"), float("-inf"), None, 1.5]})
    {'a': ['NaN', '-Infinity', None, 1.5]}
    """
    if isinstance(value, dict):
        return {str(key): strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
