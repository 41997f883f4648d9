"""Faults of engines beside trainers, each planted in a small run, each named, and each neighbour left alone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlaudit.analyzers.audit import build_report
from rlaudit.analyzers.token_differences import classify
from rlaudit.findings import Finding
from tests.synthetic import write_run

T0 = datetime(2026, 1, 1, tzinfo=UTC)


def _probe(place: int, values: list[float], *, engine: str = "e", dtype: str = "bfloat16", **more: Any) -> dict[str, Any]:
    return {
        "request_id": f"{engine}-probe-{place}",
        "phase": "probe",
        "engine_id": engine,
        "started": T0 + timedelta(seconds=10 * place),
        "input_tokens": [1, 2, 3],
        "output_tokens": [0],
        "input_logprobs": [None, *values],
        "weight_dtype": dtype,
        "policy_syncs": place,
        **more,
    }


def _sent(place: int, updates: int | None = None) -> dict[str, Any]:
    return {
        "fact": "sent", "policy_version": f"v{place}", "policy_syncs": place, "policy_updates": place if updates is None else updates,
        "time": T0 + timedelta(seconds=10 * place - 1),
    }  # fmt: skip


def _received(place: int) -> dict[str, Any]:
    time = T0 + timedelta(seconds=10 * place)
    return {"fact": "received", "policy_version": f"v{place}", "policy_syncs": place, "engine_id": "e", "time": time}


def _steps(deltas: list[float], weight_dtype: str = "float32") -> dict[str, list[dict[str, Any]]]:
    """One sequence a step whose trainer differs from the rollout by ``deltas``."""
    tables: dict[str, list[dict[str, Any]]] = {"sequences": [], "scores": [], "requests": []}
    for step, delta in enumerate(deltas):
        key = {"step": step, "sequence_id": f"s{step}"}
        tables["sequences"].append({**key, "prompt_tokens": [1], "response_tokens": [10 + step, 5, 6, 7]})
        tables["scores"].append(
            {**key, "source": "trainer", "logprobs": [-1.0 + delta, -1.0 - delta, -1.0 + delta, -1.0 - delta], "policy_updates": step,
             "weight_dtype": weight_dtype}
        )  # fmt: skip
        tables["requests"].append(
            {"request_id": f"r{step}", "input_tokens": [1], "output_tokens": [10 + step, 5, 6, 7], "logprobs": [-1.0] * 4, "engine_id": "e",
             "policy_version": f"v{step}" if step else "default", "policy_syncs": step, "weight_dtype": "bfloat16",
             "started": T0 + timedelta(seconds=10 * step + 1)}
        )  # fmt: skip
    return tables


def _findings(path: Path, tables: dict[str, list[dict[str, Any]]], **more: Any) -> dict[str, Finding]:
    merged = {name: [*tables.get(name, []), *more.get(name, [])] for name in {*tables, *more}}
    return {finding.code: finding for finding in build_report(write_run(path / "run", **merged)).findings}


HEALTHY = [1e-4, 1.1e-4, 0.9e-4]


def test_an_update_that_no_engine_received_is_named_where_the_difference_grows(tmp_path: Path) -> None:
    found = _findings(tmp_path, _steps([1e-5, 0.05, 0.2]), weights=[_sent(1), _sent(2)])
    assert found["WEIGHTS_NOT_APPLIED"].severity == "fail"


def test_a_probe_that_never_changes_shows_that_weights_were_not_applied(tmp_path: Path) -> None:
    probes = [_probe(i, [-1.0, -2.0], dtype="float32") for i in range(3)]
    tables = _steps(HEALTHY)
    for row in tables["requests"]:
        row["weight_dtype"] = "float32"
    found = _findings(tmp_path, tables, requests=probes, weights=[_sent(1), _sent(2), _received(1), _received(2)])
    assert found["WEIGHTS_NOT_APPLIED"].severity == "fail"


def test_updates_that_arrive_and_move_the_probe_are_healthy(tmp_path: Path) -> None:
    probes = [_probe(i, [-1.0 - 0.01 * i, -2.0]) for i in range(3)]
    found = _findings(tmp_path, _steps(HEALTHY), requests=probes, weights=[_sent(1), _sent(2), _received(1), _received(2)])
    assert not {"WEIGHTS_NOT_APPLIED", "WEIGHTS_CORRUPTED", "UPDATES_VANISH"} & found.keys()


def test_the_last_version_of_a_run_need_not_be_received(tmp_path: Path) -> None:
    found = _findings(tmp_path, _steps(HEALTHY), weights=[_sent(1), _sent(2), _sent(3), _received(1), _received(2)])
    assert "WEIGHTS_NOT_APPLIED" not in found


def test_a_load_of_the_same_weights_that_moves_the_probe_is_corrupt(tmp_path: Path) -> None:
    probes = [_probe(0, [-1.0, -2.0]), _probe(1, [-1.5, -1.2])]
    found = _findings(tmp_path, _steps(HEALTHY[:2]), requests=probes, weights=[_sent(1, updates=0), _received(1)])
    assert found["WEIGHTS_CORRUPTED"].severity == "fail"


def test_rounding_between_loads_of_the_same_weights_is_not(tmp_path: Path) -> None:
    probes = [_probe(0, [-1.0, -2.0]), _probe(1, [-1.0 - 1e-6, -2.0])]
    found = _findings(tmp_path, _steps(HEALTHY[:2]), requests=probes, weights=[_sent(1, updates=0), _received(1)])
    assert "WEIGHTS_CORRUPTED" not in found


@pytest.mark.parametrize("engine_move", [0.0, 1e-7])
def test_float32_updates_that_vanish_in_bfloat16_weights_are_told_from_updates_that_never_came(tmp_path: Path, engine_move: float) -> None:
    engine = [_probe(i, [-1.0 - engine_move * i, -2.0]) for i in range(3)]
    trainer = [_probe(i, [-1.0 - 1e-4 * i, -2.0], engine="trainer", dtype="float32", policy_updates=i) for i in range(3)]
    found = _findings(tmp_path, _steps(HEALTHY), requests=[*engine, *trainer], weights=[_sent(1), _sent(2), _received(1), _received(2)])
    assert found["UPDATES_VANISH"].severity == "warn"
    assert "WEIGHTS_NOT_APPLIED" not in found


def _cached(name: str, second: int, tokens: list[int], version: str, cached: int) -> dict[str, Any]:
    return {
        "request_id": name, "engine_id": "e", "started": T0 + timedelta(seconds=second), "input_tokens": tokens, "output_tokens": [7],
        "policy_version": version, "cached_tokens": cached,
    }  # fmt: skip


def test_a_prefix_that_only_older_weights_computed_is_stale(tmp_path: Path) -> None:
    calls = [_cached("a", 0, [1, 2, 3], "v0", 0), _cached("b", 1, [1, 2, 4], "v1", 2)]
    found = _findings(tmp_path, _steps(HEALTHY[:1]), requests=calls)
    assert found["PREFIX_CACHE_STALE"].where["requests"] == ["b"]


def test_a_prefix_that_a_call_of_the_same_version_computed_is_not(tmp_path: Path) -> None:
    calls = [_cached("a", 0, [1, 2, 3], "v0", 0), _cached("b", 1, [1, 2, 4], "v1", 0), _cached("c", 2, [1, 2, 5], "v1", 2)]
    assert "PREFIX_CACHE_STALE" not in _findings(tmp_path, _steps(HEALTHY[:1]), requests=calls)


def test_samples_of_one_call_share_a_prefix_that_nobody_saw_computed(tmp_path: Path) -> None:
    calls = [_cached("a", 0, [1, 2, 3], "v0", 0), *({**_cached(f"n{i}", 1, [1, 2, 4], "v1", 2), "parent_id": "p"} for i in range(2))]
    assert "PREFIX_CACHE_STALE" not in _findings(tmp_path, _steps(HEALTHY[:1]), requests=calls)


def test_calls_of_one_batch_may_have_each_others_prefix(tmp_path: Path) -> None:
    calls = [_cached("a", 0, [1, 2, 3], "v0", 0), _cached("b", 1, [1, 2, 4], "v1", 2), _cached("c", 1, [1, 2, 5], "v1", 0)]
    assert "PREFIX_CACHE_STALE" not in _findings(tmp_path, _steps(HEALTHY[:1]), requests=calls)


def test_a_retraction_across_a_weight_update_is_named(tmp_path: Path) -> None:
    spans = [{"start": 0, "end": 2, "version": "v0", "updates": None}, {"start": 2, "end": 4, "version": "v1", "updates": None}]
    tables = _steps(HEALTHY[:1])
    tables["requests"][0].update(retractions=1, version_spans=spans)
    assert "ROUTING_RECOMPUTED" in _findings(tmp_path, tables)


def test_raw_engine_logprobs_against_a_tempered_trainer_are_told_by_their_labels(tmp_path: Path) -> None:
    tables = _steps(HEALTHY[:1])
    tables["requests"][0].update(temperature=0.7, logprob_mode="raw")
    tables["scores"][0].update(temperature=0.7, logprob_mode="tempered")
    assert "LOGP_SEMANTICS_DIFFER" in _findings(tmp_path, tables)


def test_a_history_tokenised_anew_is_named_with_its_kind(tmp_path: Path) -> None:
    tables = {
        "sequences": [
            {"step": 0, "sequence_id": "s", "prompt_tokens": [1, 2], "response_tokens": [30, 40, 90, 5, 6, 7],
             "sampled_mask": [True, True, False, True, True, True]}
        ],
        "scores": [{"step": 0, "sequence_id": "s", "source": "trainer", "logprobs": [-1.0, -1.0, -1.0, -1.5, -1.5, -1.5]}],
        "requests": [
            {"request_id": "r0", "input_tokens": [1, 2], "output_tokens": [30, 40], "logprobs": [-1.0, -1.0]},
            {"request_id": "r1", "input_tokens": [1, 2, 33, 90], "output_tokens": [5, 6, 7], "logprobs": [-1.0, -1.0, -1.0]},
        ],
    }  # fmt: skip
    finding = _findings(tmp_path, tables)["TOKEN_MISMATCH"]
    evidence = {item.label: item.value for item in finding.evidence}
    assert evidence["kinds of difference"] == "re-tokenised text: 1"
    assert evidence["mean |Δ log p| of the example after it"] == pytest.approx(0.3)  # 1.5 over five sampled tokens from position 0 on


@pytest.mark.parametrize(
    ("engine", "trainer", "kind"),
    [
        ([1, 2, 3, 4], [0, 1, 2, 3, 4], "special tokens"),
        ([1, 2, 3, 4], [1, 2, 3, 4, 5, 6, 7, 8, 9], "truncation"),
        ([1, 2, 9, 4], [1, 2, 3, 4], "template"),
        ([1, 99, 2], [1, *[98] * 12, 2], "image placeholders"),
    ],
)
def test_kinds_of_difference_outside_sampled_text(engine: list[int], trainer: list[int], kind: str) -> None:
    found = classify(np.array(engine), np.array(trainer), np.zeros(len(trainer), bool))
    assert found is not None
    assert found.kind == kind


def test_equal_tokens_have_no_difference() -> None:
    assert classify(np.array([1, 2]), np.array([1, 2]), np.ones(2, bool)) is None


@pytest.mark.parametrize(("shift", "severity"), [(0.0, None), (0.01, "info"), (0.5, "fail")])
def test_log_probabilities_that_changed_between_engine_and_trainer_are_named(tmp_path: Path, shift: float, severity: str | None) -> None:
    tables = _steps(HEALTHY[:1])
    tables["scores"].append({"step": 0, "sequence_id": "s0", "source": "rollout", "logprobs": [-1.0, -1.0, -1.0 + shift, -1.0]})
    finding = _findings(tmp_path, tables).get("LOGP_ALTERED")
    assert (finding.severity if finding else None) == severity


def test_calls_that_nothing_consumed_are_counted_by_what_became_of_them(tmp_path: Path) -> None:
    more = [
        {"request_id": "x", "phase": "eval", "input_tokens": [1], "output_tokens": [2]},
        {"request_id": "y", "input_tokens": [9], "output_tokens": [9, 9, 9, 9], "finish_reason": "abort"},
    ]
    tables = _steps(HEALTHY[:1])
    run = write_run(tmp_path / "run", **{**tables, "requests": [*tables["requests"], *more]})
    assert build_report(run).facts["Engine calls"] == "3, 1 of them in recorded sequences; not consumed: 1 eval, 1 abort"
