"""What the vLLM adapter records of finished sequences, with stand-ins for the engine's objects."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest

from rlaudit.capture.engines import vllm_engines
from rlaudit.capture.engines.vllm_requests import chosen_logprobs, record_finished
from tests.adapters.vllm_fakes import engine, logprob


def test_a_finished_sequence_is_one_row_with_the_engines_own_tokens_and_values() -> None:
    with engine() as (made, sink, log):
        state = made.request("a", [1, 2, 3], temperature=0.7, top_k=-1)
        state.advance([7], [-0.5])
        state.advance([8], [-1.25], finish="stop")
    (row,) = sink.of("request")
    assert log.failures == {}
    assert (row["input_tokens"], row["output_tokens"], row["logprobs"]) == ([[1, 2, 3]], [[7, 8]], [[-0.5, -1.25]])
    assert (row["finish_reasons"], row["logprob_mode"], row["temperature"], row["top_k"]) == (["stop"], "raw", 0.7, 0)
    assert (row["started"], row["backend"], row["dtype"]) == (1_700_000_000.0, "vllm", "bfloat16")
    assert row["request_ids"] == [f"a@{made.facts.engine_id}"]


def test_deltas_of_a_stream_are_one_row_with_all_tokens() -> None:
    with engine() as (made, sink, log):
        state = made.request("a", [1], output_kind=SimpleNamespace(name="DELTA"))
        state.logprobs_processor.prompt_logprobs = [None]
        state.advance([5], [-1.0])
        state.logprobs_processor.prompt_logprobs = None  # the engine hands them out with the first delta
        state.advance([6, 7], [-2.0, -3.0])
        assert sink.of("request") == []
        state.advance([], [], finish="length")
    (row,) = sink.of("request")
    assert log.failures == {}
    assert (row["output_tokens"], row["logprobs"], row["input_logprobs"]) == ([[5, 6, 7]], [[-1.0, -2.0, -3.0]], [[None]])


def test_samples_of_one_call_name_their_parent() -> None:
    parent = SimpleNamespace(request_id="call")
    with engine() as (made, sink, _):
        states = [made.request(f"{index}_call", [1, 2], parent, index, n=2) for index in range(2)]
        states[1].advance([4], [-4.0], finish="length")
        states[0].advance([3], [-3.0], finish="length")
    rows = sink.of("request")
    assert [row["output_tokens"] for row in rows] == [[[4]], [[3]]]
    assert {row["parent_ids"][0] for row in rows} == {f"call@{made.facts.engine_id}"}


def test_an_aborted_sequence_keeps_what_it_had() -> None:
    with engine() as (made, sink, _):
        state = made.request("a", [1])
        state.advance([5], [-1.0])
        state.advance([], [], finish="abort")
    assert (sink.of("request")[0]["output_tokens"], sink.of("request")[0]["finish_reasons"]) == ([[5]], ["abort"])


def test_logits_are_no_log_probabilities() -> None:
    with engine(logprobs_mode="raw_logits") as (made, sink, _):
        for name in "ab":
            made.request(name, [1]).advance([5], [17.0], finish="stop")
    assert all(not {"logprobs", "logprob_mode"} & row.keys() for row in sink.of("request"))
    assert [event["name"] for event in sink.of("event")] == ["logprobs"]  # said once


def test_processed_log_probabilities_are_called_so() -> None:
    with engine(logprobs_mode="processed_logprobs") as (made, sink, _):
        made.request("a", [1]).advance([5], [-1.0], finish="stop")
    assert sink.of("request")[0]["logprob_mode"] == "processed"


def test_a_request_without_log_probabilities_has_none() -> None:
    with engine() as (made, sink, _):
        made.request("a", [1], logprobs=None).advance([5], finish="stop")
    assert "logprobs" not in sink.of("request")[0]
    assert sink.of("event") == []


def test_all_sampling_parameters_are_kept_without_the_derived_ones() -> None:
    with engine() as (made, sink, _):
        made.request("a", [1], min_p=0.05).advance([5], [-1.0], finish="stop")
    sampling = json.loads(sink.of("request")[0]["sampling"][0])
    assert (sampling["min_p"], sampling["stop"], sampling["output_kind"]) == (0.05, ["a", "b"], "CUMULATIVE")
    assert "_derived" not in sampling


def test_a_probe_is_a_call_of_its_own_phase() -> None:
    with engine() as (made, sink, _):
        made.request("rlaudit-probe-0", [1]).advance([5], [-1.0], finish="length")
    assert sink.of("request")[0]["phase"] == "probe"


def test_flat_containers_give_the_first_value_of_each_position_and_nothing_for_an_empty_one() -> None:
    class Flat(SimpleNamespace):
        def __len__(self) -> int:
            return len(self.start_indices)

    flat = Flat(start_indices=[0, 0, 2], end_indices=[0, 2, 3], logprobs=[-1.0, -9.0, -2.0])
    assert chosen_logprobs(flat, [4, 5, 6]) == [None, -1.0, -2.0]


def test_log_probabilities_of_another_number_of_tokens_are_dropped() -> None:
    assert chosen_logprobs([{5: logprob(-1.0)}], [5, 6]) is None


MIXED = SimpleNamespace(num_hidden_layers=4, num_experts=8, decoder_sparse_step=2, mlp_only_layers=[3])


def test_routing_of_a_mixed_model_is_that_of_its_routed_layers() -> None:
    experts = np.arange(5 * 4 * 2, dtype=np.uint8).reshape(5, 4, 2)
    with engine(hf_text_config=MIXED) as (made, sink, log):
        state = made.request("a", [1, 2, 3])
        state.routed_experts = experts
        state.advance([4, 5, 6], [-1.0, -1.0, -1.0], finish="length")
    (row,) = sink.of("routing")
    assert log.failures == {}
    assert (row["layer_ids"], row["num_experts"], row["first_position"]) == ((1,), 8, 0)
    np.testing.assert_array_equal(row["experts"][0], experts[:, [1]])


def test_routing_from_a_later_prompt_position_says_where_it_begins() -> None:
    with engine(hf_text_config=MIXED) as (made, sink, _):
        state = made.request("a", [1, 2, 3], routed_experts_prompt_start=2)
        state.routed_experts = np.zeros((1, 4, 2), np.uint8)
        state.advance([4], [-1.0], finish="length")
    assert sink.of("routing")[0]["first_position"] == 2


def test_routing_with_another_number_of_layers_is_refused_with_a_reason() -> None:
    with engine(hf_text_config=MIXED) as (made, sink, _):
        state = made.request("a", [1])
        state.routed_experts = np.zeros((1, 3, 2), np.uint8)
        state.advance([4], [-1.0], finish="length")
    assert sink.of("routing") == []
    assert "3 layers" in sink.of("event")[0]["message"]


def test_weights_that_change_while_a_sequence_grows_give_spans() -> None:
    with engine() as (made, sink, _):
        vllm_engines.SYNCS.labelled("step-0")
        state = made.request("a", [1])
        state.advance([5, 6], [-1.0, -1.0])
        vllm_engines.SYNCS.received()
        vllm_engines.SYNCS.labelled("step-1")
        state.advance([7], [-1.0], finish="stop")
    (row,) = sink.of("request")
    spans = [(span["start"], span["end"], span["version"]) for span in row["version_spans"][0]]
    assert spans == [(0, 2, "step-0"), (2, 3, "step-1")]
    assert (row["policy_version"], row["policy_syncs"]) == ("step-0", 0)


def test_the_engines_own_versions_go_before_what_was_seen() -> None:
    with engine() as (made, sink, _):
        state = made.request("a", [1])
        own = [SimpleNamespace(version="x", start=0, end=1), SimpleNamespace(version="y", start=1, end=2)]
        state.detokenizer.output_token_ids += [5, 6]
        completion = SimpleNamespace(finish_reason="stop", weight_versions=own)
        record_finished(state, completion, made.facts.running[state], made.facts, "label")
    (row,) = sink.of("request")
    assert [(s["start"], s["end"], s["version"]) for s in row["version_spans"][0]] == [(0, 1, "x"), (1, 2, "y")]
    assert row["policy_version"] == "x"


def test_an_output_processor_that_nobody_saw_being_made_is_said_once() -> None:
    with engine() as (made, sink, _):
        vllm_engines.ENGINES.clear()
        for name in "ab":
            made.request(name, [1]).advance([5], [-1.0], finish="stop")
    assert sink.of("request") == []
    assert len(sink.of("event")) == 1


@pytest.mark.parametrize("finish", ["stop", None])
def test_nothing_is_kept_of_a_finished_sequence(finish: str | None) -> None:
    with engine() as (made, _, _):
        state = made.request("a", [1])
        state.advance([5], [-1.0], finish=finish)
        assert (state in made.facts.running) == (finish is None)
