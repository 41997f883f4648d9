"""Real SGLang on a CPU beside a Hugging Face trainer: rows are the engine's own answers, both sides agree, and planted faults are named."""

from __future__ import annotations

import base64
import json
import pickle
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from rlaudit import Run
from tests.integration.environments import run as run_command

from .sglang_environment import HERE, VARIABLES, captured, sglang_commands

pytestmark = pytest.mark.integration
LAYERS, TOP_K = 4, 4


class Captured(NamedTuple):
    """A captured run: what its clients got, its rows by table, its report as ``--format json`` gives it."""

    got: dict[str, Any]
    requests: dict[str, dict[str, Any]]
    routing: dict[str, np.ndarray[Any, Any]]
    run: Run
    report: dict[str, Any]

    @property
    def codes(self) -> dict[str, str]:
        """Finding code to severity."""
        return {finding["code"]: finding["severity"] for finding in self.report["findings"]}


@pytest.fixture(scope="session")
def commands() -> Path:
    return sglang_commands()


@pytest.fixture(scope="session")
def models(commands: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for script in ("vllm_models.py", "sglang_models.py"):
        run_command([commands / "python", HERE / script, folder], folder, **VARIABLES)
    return folder


def capture(commands: Path, folder: Path, engine: list[str], reference: list[str], *options: str, **variables: str) -> Captured:
    """Run the engine's script and the reference below one captured command."""
    script, models, dtype, *part = engine
    kept = folder / "got.pickle"
    captured(commands, folder / "run", "sglang_both.py", script, models, dtype, kept, *part, "--", *reference, options=options, **variables)
    run = Run.open(folder / "run")
    requests = {row["request_id"]: row for row in run.read("requests").to_pylist()}
    routing = {row["request_id"]: experts(row) for row in run.read("routing").to_pylist() if row["request_id"] is not None}
    report = json.loads(run_command([commands / "rlaudit", "report", folder / "run", "--format", "json"]))
    return Captured(pickle.loads(kept.read_bytes()), requests, routing, run, report)


def experts(row: dict[str, Any]) -> np.ndarray[Any, Any]:
    """(tokens, layers, top_k) of a routing row; 16 experts fit a byte."""
    return np.frombuffer(row["experts"], np.uint8).reshape(-1, LAYERS, TOP_K)


@pytest.fixture(scope="session")
def clean(commands: Path, models: Path, tmp_path_factory: pytest.TempPathFactory) -> Captured:
    folder = tmp_path_factory.mktemp("clean")
    return capture(commands, folder, ["sglang_generate.py", str(models), "float32", "answers"], ["float32", "1.0", "1.0"])


@pytest.fixture(scope="session")
def relabelled(commands: Path, models: Path, tmp_path_factory: pytest.TempPathFactory) -> Captured:
    folder = tmp_path_factory.mktemp("relabelled")
    engine = ["sglang_generate.py", str(models), "bfloat16", "relabelled"]
    return capture(commands, folder, engine, ["bfloat16", "1.0", "1.0"], "--probe")


@pytest.fixture(scope="session")
def unasked(commands: Path, models: Path, tmp_path_factory: pytest.TempPathFactory) -> Captured:
    folder = tmp_path_factory.mktemp("unasked")
    engine = ["sglang_generate.py", str(models), "float32", "unasked"]
    options = ("--record-logprobs", "--record-routing")
    return capture(commands, folder, engine, ["float32", "0.7", "0.7"], *options, SGLANG_RETURN_ORIGINAL_LOGPROB="1")


@pytest.fixture(scope="session")
def served(commands: Path, models: Path, tmp_path_factory: pytest.TempPathFactory) -> Captured:
    folder = tmp_path_factory.mktemp("served")
    return capture(commands, folder, ["sglang_serve.py", str(models), "float32"], ["float32", "0.7", "1.0"])


def assert_recorded(run: Captured, answer: dict[str, Any], prompt: list[int] | None) -> dict[str, Any]:
    """The answer's row, having compared it with the answer itself."""
    meta = answer["meta_info"]
    row = run.requests[meta["id"]]
    assert row["output_tokens"] == answer["output_ids"]
    assert row["input_tokens"] == prompt
    expected = np.array([entry[0] for entry in meta["output_token_logprobs"]], np.float32)
    np.testing.assert_array_equal(np.array(row["logprobs"], np.float32), expected)
    given = np.frombuffer(base64.b64decode(meta["routed_experts"]), np.int32).reshape(-1, LAYERS, TOP_K)
    np.testing.assert_array_equal(run.routing[meta["id"]], given)
    assert row["finish_reason"] == meta["finish_reason"]["type"]
    assert row["cached_tokens"] == meta["cached_tokens"]
    assert row["retractions"] == meta["num_retractions"]
    return row


def metric(run: Captured, name: str) -> float:
    """A metric of the report over the whole run, rollout against trainer."""
    return float(run.report["metrics"]["overall"][name])


def test_batched_answers_are_recorded_bit_for_bit(clean: Captured) -> None:
    for one, answer in zip(clean.got["sequences"], clean.got["batch"], strict=True):
        row = assert_recorded(clean, answer, one["prompt"])
        assert (row["logprob_mode"], row["temperature"], row["top_k"], row["dtype"]) == ("tempered", 1.0, 0, "float32")
        assert json.loads(row["sampling"])["max_new_tokens"] == len(answer["output_ids"])


def test_each_of_several_samples_is_a_row_with_its_prompt_and_parent(clean: Captured) -> None:
    prompts = [one["prompt"] for one in clean.got["sequences"][:2]]
    rows = [assert_recorded(clean, a, prompts[i // 2]) for i, a in enumerate(clean.got["several"])]
    parents = [row["parent_id"] for row in rows]
    assert parents[0] == parents[1] != parents[2] == parents[3]
    assert {(row["temperature"], row["top_k"], row["min_p"]) for row in rows} == {(0.8, 20, 0.01)}


def test_a_stream_is_one_row_with_its_whole_output(clean: Captured) -> None:
    assert_recorded(clean, clean.got["streamed"], clean.got["sequences"][0]["prompt"])


def test_input_logprobs_are_aligned_with_the_input(clean: Captured) -> None:
    meta = clean.got["scored"]["meta_info"]
    row = clean.requests[meta["id"]]
    given = [entry[0] for entry in meta["input_token_logprobs"]]
    assert row["input_logprobs"][:5] == [None] * 5
    np.testing.assert_array_equal(np.array(row["input_logprobs"][5:], np.float32), np.array(given[1:], np.float32))
    assert [entry[1] for entry in meta["input_token_logprobs"]] == row["input_tokens"][4:]
    assert (row["input_logprob_mode"], row["logprob_mode"]) == ("raw", "raw")


def test_a_stream_that_its_client_leaves_is_recorded_as_far_as_it_came(clean: Captured) -> None:
    seen = clean.got["dropped"]
    row = clean.requests[seen["id"]]
    assert row["finish_reason"] == "abort"
    assert row["output_tokens"][: len(seen["tokens"])] == seen["tokens"]
    assert len(row["logprobs"]) == len(row["output_tokens"])


def test_float32_engine_and_trainer_agree(clean: Captured) -> None:
    assert metric(clean, "logp_diff_max") < 1e-4
    assert metric(clean, "routing_disagreement") <= 0.001
    assert "fail" not in clean.codes.values()


def test_bfloat16_engine_and_trainer_differ(relabelled: Captured) -> None:
    assert metric(relabelled, "logp_diff_max") > 1e-3


def test_an_update_of_which_only_the_label_came_is_named(relabelled: Captured) -> None:
    assert relabelled.codes["WEIGHTS_NOT_APPLIED"] == "fail"
    probes = [row for row in relabelled.requests.values() if row["phase"] == "probe"]
    assert [row["policy_version"] for row in sorted(probes, key=lambda row: row["started"])] == ["default", "v1"]
    assert probes[0]["input_logprobs"] == probes[1]["input_logprobs"]
    assert len(probes[0]["input_logprobs"]) == 32


def test_what_only_capture_asked_for_is_recorded_and_not_returned(unasked: Captured) -> None:
    for answer in [*unasked.got["batch"], *unasked.got["streamed"]]:
        assert (
            not {"output_token_logprobs", "input_token_logprobs", "output_token_logprobs_length", "routed_experts"}
            & answer["meta_info"].keys()
        )
    for answer in unasked.got["batch"]:
        name = answer["meta_info"]["id"]
        assert len(unasked.requests[name]["logprobs"]) == len(answer["output_ids"])
        assert len(unasked.routing[name]) == answer["meta_info"]["prompt_tokens"] + len(answer["output_ids"]) - 1
    kinds = [row["name"] for row in unasked.run.read("events").to_pylist() if row["kind"] == "setting_changed"]
    assert sorted(kinds) == ["enable_return_routed_experts", "return_logprob"]


def test_untempered_engine_logprobs_against_a_tempered_trainer_are_named(unasked: Captured) -> None:
    assert {row["logprob_mode"] for row in unasked.requests.values()} == {"raw"}
    assert unasked.codes["LOGP_SEMANTICS_DIFFER"] == "fail"


def test_tempered_engine_logprobs_against_an_untempered_trainer_are_named(served: Captured) -> None:
    assert served.codes["LOGP_SEMANTICS_DIFFER"] == "fail"


def test_answers_over_http_are_recorded_bit_for_bit(served: Captured) -> None:
    for answer in served.got["batch"]:
        assert_recorded(served, answer, served.got["sequences"][0]["prompt"])


def test_the_input_of_a_text_prompt_is_known_only_where_the_answer_repeats_it(served: Captured) -> None:
    assert_recorded(served, served.got["text"], None)
    assert_recorded(served, served.got["told"], served.got["told"]["prompt_token_ids"])


def test_a_client_that_disconnects_leaves_an_aborted_call(served: Captured) -> None:
    row = served.requests["dropped"]
    assert row["finish_reason"] == "abort"
    seen = served.got["dropped"][-1]["output_ids"]
    assert row["output_tokens"][: len(seen)] == seen


def test_a_call_that_is_retracted_amid_an_update_has_spans_over_its_output(served: Captured) -> None:
    answer = served.got["retracted"]
    row = assert_recorded(served, answer, [700, *served.got["sequences"][0]["prompt"]])
    spans = row["version_spans"]
    assert [span["version"] for span in spans] == ["default", "v1"]
    assert (spans[0]["start"], spans[1]["start"], spans[1]["end"]) == (0, spans[0]["end"], 300)
    assert row["policy_version"] == "default"
    assert row["policy_syncs"] == 0
    assert row["retractions"] == 1
    assert "ROUTING_RECOMPUTED" in served.codes


def test_a_prefix_cache_that_outlives_an_update_is_named(served: Captured) -> None:
    assert served.requests["stale"]["cached_tokens"] > 0
    assert served.requests["stale"]["policy_syncs"] == 1
    assert served.codes["PREFIX_CACHE_STALE"] == "fail"
    received = [row for row in served.run.read("weights").to_pylist() if row["fact"] == "received"]
    assert [(row["policy_version"], row["policy_syncs"]) for row in received] == [("v1", 1)]


def test_no_observer_failed(clean: Captured, relabelled: Captured, unasked: Captured, served: Captured) -> None:
    for run in (clean, relabelled, unasked, served):
        assert "CAPTURE_HOOK_FAILED" not in run.codes
