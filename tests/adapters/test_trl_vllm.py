"""TRL's real colocate code on a stand-in engine: its log-probabilities, weight versions, and TRL's own sampling metrics from our rows."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any]]:
    folder = tmp_path_factory.mktemp("vllm")
    paths = os.pathsep.join([str(HERE.parent.parent), str(HERE / "stub_vllm")])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.adapters.vllm_run", str(folder)]
    done = subprocess.run(command, env=environment, cwd=HERE.parent.parent, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return pickle.loads((folder / "run.pickle").read_bytes())  # type: ignore[no-any-return]


def differences(sink: dict[str, Any], step: int) -> Any:
    """|trainer − rollout| of a step's loss tokens; a log-probability that the engine could not give is left out."""
    trainer = {row["sequence_id"]: row["logprobs"] for row in sink["scores"] if row["source"] == "trainer"}
    gaps = [
        np.abs(trainer[row["sequence_id"]].astype(np.float32) - row["logprobs"].astype(np.float32))[row["loss_mask"] != 0]
        for row in sink["rollouts"]
        if row["step"] == step
    ]
    joined = np.concatenate(gaps)
    return joined[~np.isnan(joined)]


def test_nothing_failed(recorded: Any) -> None:
    assert recorded[2] == {}


def test_our_rows_give_trls_logged_logprob_difference_mean_and_max(recorded: Any) -> None:
    sink, log, _ = recorded
    for step in (0, 2):  # one generation feeds two optimizer steps
        values = next(one["values"] for one in sink["metrics"] if one["step"] == step)
        gaps = differences(sink, step)
        assert np.mean(gaps) == pytest.approx(values["sampling/sampling_logp_difference/mean"], rel=1e-5)
        assert np.max(gaps) == pytest.approx(values["sampling/sampling_logp_difference/max"], rel=1e-6)
    assert "sampling/sampling_logp_difference/mean" not in log[1]


def test_the_engines_dtype_is_recorded_because_trl_serves_a_float32_model_in_bfloat16(recorded: Any) -> None:
    sink = recorded[0]
    assert {(row["backend"], row["dtype"]) for row in sink["rollouts"]} == {("vllm", "bfloat16")}
    assert {row["dtype"] for row in sink["scores"]} == {"float32"}


def test_a_nan_of_the_engine_stays_a_nan_and_is_not_zero(recorded: Any) -> None:
    sink = recorded[0]
    assert [int(np.isnan(row["logprobs"]).sum()) for row in sink["rollouts"][:3]] == [0, 1, 0]
    assert [int(np.isnan(row["logprobs"]).sum()) for row in sink["requests"][:3]] == [0, 1, 0]


def test_policy_versions_follow_the_weight_syncs(recorded: Any) -> None:
    sink = recorded[0]
    assert [(row["fact"], row["policy_updates"], row["policy_syncs"]) for row in sink["weights"]] == [("sent", 0, 1), ("sent", 2, 2)]
    assert {(row["step"], row["policy_updates"], row["policy_syncs"]) for row in sink["rollouts"]} == {(0, 0, 1), (2, 2, 2)}
    updates = {(row["step"], row["update"], row["policy_updates"]) for row in sink["scores"] if row["source"] == "update"}
    assert updates == {(0, 0, 0), (0, 1, 1), (2, 0, 2)}


def test_every_loss_row_joins_its_rollout_and_the_engines_call(recorded: Any) -> None:
    sink = recorded[0]
    rollouts = {row["sequence_id"]: row for row in sink["rollouts"]}
    requests = {row["request_id"]: row for row in sink["requests"]}
    assert {row["sequence_id"] for row in sink["scores"] if row["source"] == "trainer"} == rollouts.keys()
    used = {row["sequence_id"] for row in sink["scores"] if row["source"] == "update"}
    assert used <= rollouts.keys()
    assert len(sink["links"]) == len(rollouts)
    for link in sink["links"]:
        request, row = requests[link["request_id"]], rollouts[link["sequence_id"]]
        assert list(request["output_tokens"]) == list(row["response_tokens"])
        np.testing.assert_allclose(request["logprobs"], row["logprobs"], rtol=1e-6)
