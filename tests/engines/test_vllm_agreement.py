"""A real vLLM against Hugging Face, audited: the numbers that were measured by hand on the same models, prompts and seeds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.engines.vllm_environment import captured, made_models, vllm_commands
from tests.integration.environments import run

pytestmark = pytest.mark.integration


def test_bfloat16_experts_differ_from_the_reference_by_the_measured_amounts(tmp_path: Path) -> None:
    commands = vllm_commands()
    models = made_models(commands, tmp_path)
    captured(commands, tmp_path / "run", "vllm_both.py", models / "moe", "bfloat16", "bfloat16", tmp_path / "kept.pickle")
    found = json.loads(run([commands / "rlaudit", "report", tmp_path / "run", "--format", "json"]))["metrics"]["overall"]
    assert found["logp_diff_mean"] == pytest.approx(1.37e-2, rel=0.5)
    assert found["pearson_prob"] == pytest.approx(0.99936, abs=1e-3)
    assert 0.03 < found["routing_any_layer"] < 0.2
