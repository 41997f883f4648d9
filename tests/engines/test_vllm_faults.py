"""Defects of a real vLLM that engine and framework do not report: experts that a weight update leaves in another layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.engines.vllm_environment import captured, made_models, vllm_commands
from tests.integration.environments import run

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def commands() -> Path:
    return vllm_commands()


@pytest.fixture(scope="module")
def models(commands: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_models(commands, tmp_path_factory.mktemp("models"))


def report(commands: Path, folder: Path) -> dict[str, Any]:
    return json.loads(run([commands / "rlaudit", "report", folder, "--format", "json"]))  # type: ignore[no-any-return]


def found(report: dict[str, Any]) -> dict[str, str]:
    return {finding["code"]: finding["severity"] for finding in report["findings"]}


def test_the_same_experts_loaded_again_are_found_to_be_corrupted(commands: Path, models: Path, tmp_path: Path) -> None:
    captured(commands, tmp_path / "run", "vllm_reload.py", models / "moe", options=("--probe",))
    assert found(report(commands, tmp_path / "run"))["WEIGHTS_CORRUPTED"] == "fail"


def test_the_same_dense_weights_loaded_again_are_not(commands: Path, models: Path, tmp_path: Path) -> None:
    captured(commands, tmp_path / "run", "vllm_reload.py", models / "dense", options=("--probe",))
    assert "WEIGHTS_CORRUPTED" not in found(report(commands, tmp_path / "run"))
    query = "select policy_syncs, len(input_logprobs) as scored from requests where phase = 'probe' order by started"
    probes = json.loads(run([commands / "rlaudit", "query", tmp_path / "run", query, "--format", "json"]))
    assert [probe["policy_syncs"] for probe in probes] == [0, 1]
    assert {probe["scored"] for probe in probes} == {31}  # one fewer than a block


@pytest.mark.parametrize(("mode", "corrupted"), [("as-is", True), ("repacked", False)])
def test_trl_with_experts_in_vllm_fails_the_audit_unless_they_are_packed_again(
    mode: str, corrupted: bool, commands: Path, models: Path, tmp_path: Path
) -> None:
    captured(commands, tmp_path / "run", "vllm_trl.py", models / "moe", tmp_path / "output", mode, options=("--probe",))
    audited = report(commands, tmp_path / "run")
    assert ("WEIGHTS_CORRUPTED" in found(audited)) == corrupted
    logged = "select avg(value) as gap from framework_metrics where name = 'sampling/sampling_logp_difference/mean'"
    gap = json.loads(run([commands / "rlaudit", "query", tmp_path / "run", logged, "--format", "json"]))[0]["gap"]
    if corrupted:
        assert audited["verdict"]["status"] == "FAIL"
        assert gap > 0.15  # what TRL itself logs and goes on with
    else:
        assert gap < 0.05
