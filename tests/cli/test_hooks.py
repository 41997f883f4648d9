"""rlaudit hooks: every adapter with what would happen to it, and the reason where it refuses."""

from __future__ import annotations

import json

import pytest

from rlaudit.capture.survey import Surveyed, survey


def test_every_adapter_is_listed_with_its_state(cli) -> None:
    rows = json.loads(cli("hooks", "--format", "json").out)
    assert rows == [row._asdict() for row in survey()]
    assert {row["state"] for row in rows} <= {"ready", "refused", "not installed"}
    text = cli("hooks").out
    for row in rows:
        assert any(line.strip().startswith(row["adapter"]) and line.rstrip().endswith(row["state"]) for line in text.splitlines())


def test_a_refusal_is_printed_with_its_reason(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = Surveyed("TRL GRPO", "framework", "trl", "9.0", ">=0.24,<9", "refused", "trl 9.0 is not supported", "tokens")
    monkeypatch.setattr("rlaudit.capture.survey.survey", lambda: [refused])
    assert "TRL GRPO refuses: trl 9.0 is not supported." in cli("hooks").out
