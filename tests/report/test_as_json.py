"""The JSON report is strictly valid, and its published schema describes all of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from rlaudit.report import as_json

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "report.schema.json").read_text(encoding="utf-8"))


def parse_strictly(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def closed(schema: Any) -> Any:
    """The schema with every object closed, so that a field that it does not describe is an error."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    result = {key: closed(value) for key, value in schema.items()}
    if "properties" in schema and isinstance(schema.get("required"), list):
        result.setdefault("additionalProperties", False)
    return result


@pytest.mark.parametrize("name", ["full_report", "healthy_report", "long_report"])
def test_reports_are_valid_under_the_published_schema_and_hold_nothing_that_it_leaves_out(
    name: str, request: pytest.FixtureRequest
) -> None:
    document = parse_strictly(as_json.render(request.getfixturevalue(name)))
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.Draft202012Validator(closed(SCHEMA)).validate(document)


def test_a_report_without_its_verdict_is_refused_by_the_schema(full_report: Any) -> None:
    document = as_json.document(full_report)
    del document["verdict"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(SCHEMA).validate(document)


def test_missing_values_stay_null_and_infinities_become_strings(full_report: Any) -> None:
    evidence = {item["label"]: item["value"] for item in parse_strictly(as_json.render(full_report))["findings"][0]["evidence"]}
    assert evidence["unknown"] is None
    assert evidence["highest log-probability"] == "Infinity"


def test_numbers_keep_full_precision(full_report: Any) -> None:
    document = parse_strictly(as_json.render(full_report))
    assert document["metrics"]["overall"] == full_report.overall
    assert document["metrics"]["by_step"][3]["values"] == full_report.by_step[3].values
