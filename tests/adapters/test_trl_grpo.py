"""What is recorded of a default GRPO run is what TRL generated, scored and trained on, and recording changes nothing."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trl.trainer.grpo_trainer

from rlaudit import recording

from .tiny_trl import Run, attached, train


@pytest.fixture(scope="module")
def run(plain_grpo: tuple[Run, Run]) -> Run:
    return plain_grpo[0]


def by_id(rows: list[dict[str, Any]], **match: Any) -> dict[str, dict[str, Any]]:
    chosen = [row for row in rows if all(row[name] == value for name, value in match.items())]
    found = {row["sequence_id"]: row for row in chosen}
    assert len(found) == len(chosen), "a sequence has two rows"
    return found


def test_final_weights_and_all_generator_states_are_bit_identical_with_and_without_capture(plain_grpo: tuple[Run, Run]) -> None:
    captured, plain = plain_grpo
    assert captured.sink.rollouts
    assert not plain.sink.rollouts
    assert captured.weights == plain.weights
    assert captured.generators == plain.generators
    losses = [[entry["loss"] for entry in one.log if "loss" in entry] for one in plain_grpo]
    assert losses[0] == losses[1]


def test_no_hook_failed_and_nothing_was_left_out(run: Run) -> None:
    assert run.hooks.failures == {}
    assert run.sink.events == []


def test_every_row_that_the_loss_used_joins_a_rollout_and_every_rollout_was_used(run: Run) -> None:
    rollouts = by_id(run.sink.rollouts)
    updates = by_id(run.sink.scores, source="update")
    assert len(rollouts) == 2 * 8
    assert updates.keys() == rollouts.keys()
    for name, update in updates.items():
        assert len(update["logprobs"]) == len(rollouts[name]["response_tokens"])
        assert (update["step"], update["update"], update["policy_updates"]) == (rollouts[name]["step"], 0, rollouts[name]["policy_updates"])


def test_rows_are_not_mixed_up_by_trls_shuffle_because_their_logprobs_agree_in_float32(run: Run) -> None:
    rollouts = by_id(run.sink.rollouts)
    for name, update in by_id(run.sink.scores, source="update").items():
        np.testing.assert_allclose(update["logprobs"], rollouts[name]["logprobs"], atol=2e-4)


def test_sequences_are_the_tokens_that_the_trainer_consumed_without_padding(run: Run) -> None:
    for row in run.sink.rollouts:
        assert row["prompt_tokens"][0] == 1  # <|im_start|>: no left padding
        ended = row["response_tokens"][-1] in (2, *range(60, 90))
        assert row["finish_reason"] == ("stop" if ended else "length")
        assert ended or len(row["response_tokens"]) == 12
        assert not set(row["response_tokens"][:-1]) & {2, *range(60, 90)}
        assert row["loss_mask"].all()
        assert np.isfinite(row["logprobs"]).all()
        assert (row["logprob_mode"], row["dtype"], row["weight_dtype"]) == ("processed", "float32", "float32")
        assert (row["temperature"], row["top_p"], row["top_k"]) == (1.0, 1.0, 0)
    assert Counter(row["finish_reason"] for row in run.sink.rollouts).keys() == {"stop", "length"}


def test_groups_hold_num_generations_rows_of_one_prompt(run: Run) -> None:
    groups = Counter(row["group_id"] for row in run.sink.rollouts)
    assert set(groups.values()) == {4}
    for group in groups:
        assert len({tuple(row["prompt_tokens"]) for row in run.sink.rollouts if row["group_id"] == group}) == 1


def test_mean_reward_and_group_advantages_are_trls(run: Run) -> None:
    for step in (0, 1):
        rows = [row for row in run.sink.rollouts if row["step"] == step]
        assert np.mean([row["reward"] for row in rows]) == pytest.approx(run.log[step]["reward"], abs=1e-6)
        for group in {row["group_id"] for row in rows}:
            rewards = np.array([row["reward"] for row in rows if row["group_id"] == group])
            expected = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-4)  # GRPO: scaled by the group's standard deviation
            np.testing.assert_allclose([row["advantage"] for row in rows if row["group_id"] == group], expected, rtol=1e-3, atol=1e-4)


def test_entropies_give_trls_logged_entropy(run: Run) -> None:
    for step in (0, 1):
        batches: dict[int, list[Any]] = {}
        for row in run.sink.scores:
            if row["step"] == step:
                batches.setdefault(row["micro_batch"], []).append(row["entropies"])
        assert len(batches) == 2
        expected = np.mean([np.concatenate(rows).mean() for rows in batches.values()])  # TRL: token mean a micro-batch, then their mean
        assert expected == pytest.approx(run.log[step]["entropy"], rel=1e-5)


def test_each_sequence_is_linked_to_the_request_that_produced_it_token_for_token(run: Run) -> None:
    requests = {row["request_id"]: row for row in run.sink.requests}
    rollouts = by_id(run.sink.rollouts)
    assert len(requests) == len(rollouts) == len(run.sink.links)
    for link in run.sink.links:
        request, sequence = requests[link["request_id"]], rollouts[link["sequence_id"]]
        assert link["method"] == "framework"
        assert (link["start"], link["end"]) == (0, len(sequence["response_tokens"]))
        assert list(request["input_tokens"]) == list(sequence["prompt_tokens"])
        assert list(request["output_tokens"]) == list(sequence["response_tokens"])
        assert request["finished"] >= request["started"]


def test_routing_covers_every_position_in_training_and_all_but_the_last_in_rollouts(run: Run) -> None:
    rollouts = by_id(run.sink.rollouts)
    sampled, trained = by_id(run.sink.routing, source="rollout"), by_id(run.sink.routing, source="update")
    assert sampled.keys() == trained.keys() == rollouts.keys()
    same = []
    for name, row in rollouts.items():
        tokens = len(row["prompt_tokens"]) + len(row["response_tokens"])
        assert sampled[name]["experts"].shape == (tokens - 1, 2, 2)
        assert trained[name]["experts"].shape == (tokens, 2, 2)
        assert (sampled[name]["layer_ids"], sampled[name]["num_experts"]) == ((1, 2), 8)
        same.append(np.sort(sampled[name]["experts"], -1) == np.sort(trained[name]["experts"][:-1], -1))
    assert np.concatenate(same).mean() == 1.0  # same weights, float32: the same experts


def test_trls_own_numbers_are_recorded_under_the_step_whose_sequences_they_describe(run: Run) -> None:
    for step in (0, 1):
        values = next(one["values"] for one in run.sink.metrics if one["step"] == step and "loss" in one["values"])
        assert values == {name: value for name, value in run.log[step].items() if name != "step"}


def test_each_step_is_closed_once(run: Run) -> None:
    assert run.sink.steps == [0, 1]


def test_detaching_restores_every_original_method() -> None:
    cls = trl.trainer.grpo_trainer.GRPOTrainer
    before = dict(vars(cls))
    with attached():
        assert vars(cls)["_compute_loss"] is not before["_compute_loss"]
    assert dict(vars(cls)) == before


def test_nothing_keeps_the_trainer_alive(tiny_model_folder: Path, tmp_path: Path) -> None:
    held = weakref.ref(train(tiny_model_folder, tmp_path, max_steps=1).trainer)
    gc.collect()
    assert held() is None


class BrokenSink:
    """A recorder in which everything fails."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("the recorder is broken")


def test_a_failing_recorder_changes_no_bit_of_the_training(
    plain_grpo: tuple[Run, Run], tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = recording.set_sink
    monkeypatch.setattr(recording, "set_sink", lambda sink: real(None if sink is None else BrokenSink()))  # type: ignore[arg-type]
    broken = train(tiny_model_folder, tmp_path)
    assert broken.hooks.failures
    assert broken.weights == plain_grpo[1].weights
    assert broken.generators == plain_grpo[1].generators
