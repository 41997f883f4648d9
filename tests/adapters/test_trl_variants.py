"""Rows stay joined and truthful through TRL's other paths: reuse across updates, masks, evaluation, references, tools, RLOO."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers.generation.utils
import trl.trainer.grpo_trainer
from datasets import Dataset

from .tiny_trl import QUESTIONS, Run, reward_letters, train

ENDS = {2, *range(60, 90)}


def joined(run: Run, **match: Any) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Each matching scores row with its sequence; fails where one has none."""
    rollouts = {row["sequence_id"]: row for row in run.sink.rollouts}
    return [(row, rollouts[row["sequence_id"]]) for row in run.sink.scores if all(row[name] == value for name, value in match.items())]


class TestReuse:
    """steps_per_generation 4, accumulation 2, two iterations, a reference, truncated responses masked, evaluation and checkpoints."""

    @pytest.fixture(scope="class")
    def run(self, tiny_model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
        evaluation = Dataset.from_dict({"prompt": [[{"role": "user", "content": question}] for question in QUESTIONS[:1]]})
        return train(
            tiny_model_folder,
            tmp_path_factory.mktemp("output"),
            max_steps=4,
            steps_per_generation=4,
            num_iterations=2,
            beta=0.1,
            mask_truncated_completions=True,
            eval_dataset=evaluation,
            eval_strategy="steps",
            eval_steps=4,
            per_device_eval_batch_size=4,
            save_strategy="steps",
            save_steps=2,
        )

    def test_every_use_of_a_row_is_its_own_score_with_its_own_weights(self, run: Run) -> None:
        assert run.hooks.failures == {}
        uses = [(row, sequence) for row, sequence in joined(run, source="update") if sequence["phase"] == "train"]
        # 16 rows, each used in 2 iterations; generated at step 0, used at optimizer steps 0..3, half a batch a step
        assert Counter(row["update"] for row, _ in uses) == {0: 8, 1: 8, 2: 8, 3: 8}
        assert all(row["policy_updates"] == row["step"] + row["update"] for row, _ in uses)
        assert all(row["step"] == sequence["step"] == 0 for row, sequence in uses)
        assert Counter(Counter(row["sequence_id"] for row, _ in uses).values()) == {2: 16}

    def test_later_uses_differ_from_the_rollout_because_the_weights_moved(self, run: Run) -> None:
        distance: dict[int, list[float]] = {}
        for row, sequence in joined(run, source="update"):
            if sequence["phase"] == "train":
                gap = np.abs(row["logprobs"] - sequence["logprobs"])
                distance.setdefault(row["update"], []).extend(gap[np.isfinite(gap)])
        assert np.max(distance[0]) < 2e-4
        assert all(np.mean(distance[update]) > 1e-3 for update in (1, 2, 3))

    def test_old_logprobs_are_the_trainers_before_any_update(self, run: Run) -> None:
        rows = [(row, sequence) for row, sequence in joined(run, source="trainer") if sequence["phase"] == "train"]
        assert len(rows) == 16
        for row, sequence in rows:
            finite = np.isfinite(row["logprobs"])
            np.testing.assert_allclose(row["logprobs"][finite], sequence["logprobs"][finite], atol=2e-4)
        assert {row["update"] for row, _ in rows} == {0}
        assert (
            Counter(row["micro_batch"] for row, _ in rows).most_common(1)[0][1] == 4
        )  # TRL scores per_device_train_batch_size rows at once

    def test_the_reference_is_tagged_and_does_not_follow_the_policy(self, run: Run) -> None:
        rows = joined(run, source="reference")
        assert {row["policy_version"] for row, _ in rows} == {"reference"}
        assert all("policy_updates" not in row for row, _ in rows)
        start = [(row, sequence) for row, sequence in rows if sequence["step"] == 0]
        for row, sequence in start:  # at step 0 the reference is the policy
            finite = np.isfinite(row["logprobs"])
            np.testing.assert_allclose(row["logprobs"][finite], sequence["logprobs"][finite], atol=2e-4)

    def test_truncated_rows_keep_their_tokens_and_have_no_loss_and_no_trainer_numbers(self, run: Run) -> None:
        truncated = [row for row in run.sink.rollouts if row["finish_reason"] == "length"]
        assert truncated
        for row in truncated:
            assert len(row["response_tokens"]) == 12
            assert not row["loss_mask"].any()
            assert np.isfinite(row["logprobs"]).all()
        names = {row["sequence_id"] for row in truncated}
        evaluations = [row for row in run.sink.scores if row["sequence_id"] in names]
        assert evaluations
        assert all(
            np.isnan(row["logprobs"]).all() for row in evaluations
        )  # TRL took these tokens out of attention: nothing was computed for them

    def test_evaluation_rows_are_marked_and_joined(self, run: Run) -> None:
        evaluated = [row for row in run.sink.rollouts if row["phase"] == "eval"]
        assert len(evaluated) == 4
        assert {row["step"] for row in evaluated} == {4}
        names = {row["sequence_id"] for row in evaluated}
        scored = [row for row in run.sink.scores if row["source"] == "update" and row["sequence_id"] in names]
        assert {row["sequence_id"] for row in scored} == names
        assert {row["forward"] for row in scored} == {"recompute"}
        assert any(name.startswith("eval_") for one in run.sink.metrics if one["step"] == 4 for name in one["values"])

    def test_saved_checkpoints_are_facts_with_a_path(self, run: Run) -> None:
        saved = [row for row in run.sink.weights if row["fact"] == "saved"]
        assert [(row["policy_updates"], Path(row["checkpoint"]).name) for row in saved] == [(2, "checkpoint-2"), (4, "checkpoint-4")]
        assert all(Path(row["checkpoint"]).is_dir() for row in saved)


class TestTools:
    """Several turns a row, through TRL's own tool loop. Random tokens call no tool, so the test's parser decides who does."""

    @pytest.fixture(scope="class")
    def run(self, tiny_model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
        def parse(tokenizer: Any, ids: list[int], prefix: list[int] | None = None, tools: Any = None) -> dict[str, Any]:
            message: dict[str, Any] = {"role": "assistant", "content": tokenizer.decode(ids, skip_special_tokens=True)}
            if sum(ids) % 3:
                message["tool_calls"] = [{"type": "function", "function": {"name": "look_up", "arguments": {"word": "e"}}}]
            return message

        def look_up(word: str) -> str:
            """Look a word up.

            Args:
                word: The word.

            Returns:
                Its meaning.
            """
            return f"meaning of {word}"

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(trl.trainer.grpo_trainer, "parse_response", parse)
            return train(
                tiny_model_folder,
                tmp_path_factory.mktemp("output"),
                tools=[look_up],
                max_completion_length=150,
                max_tool_calling_iterations=3,
                reward_funcs=lambda completions, **kwargs: [float(len(turns)) for turns in completions],
            )

    def test_several_turns_happened(self, run: Run) -> None:
        assert run.hooks.failures == {}
        assert {link["turn"] for link in run.sink.links} >= {0, 1, 2}

    def test_every_request_is_linked_by_trls_order_and_its_tokens_are_the_rows(self, run: Run) -> None:
        requests = {row["request_id"]: row for row in run.sink.requests}
        rollouts = {row["sequence_id"]: row for row in run.sink.rollouts}
        assert {link["request_id"] for link in run.sink.links} == requests.keys()
        for link in run.sink.links:
            request, row = requests[link["request_id"]], rollouts[link["sequence_id"]]
            assert link["method"] == "framework"
            assert list(request["input_tokens"]) == [*row["prompt_tokens"], *row["response_tokens"][: link["start"]]]
            produced = row["response_tokens"][link["start"] : link["end"]]
            assert list(request["output_tokens"][: len(produced)]) == list(produced)

    def test_sampled_mask_and_loss_mask_leave_out_the_tools_tokens(self, run: Run) -> None:
        for row in run.sink.rollouts:
            spans = [(link["start"], link["end"]) for link in run.sink.links if link["sequence_id"] == row["sequence_id"]]
            expected = np.zeros(len(row["response_tokens"]))
            for start, end in spans:
                expected[start:end] = 1
            assert list(row["sampled_mask"]) == list(expected)
            assert list(row["loss_mask"]) == list(expected)

    def test_tool_tokens_have_no_sampling_logprob_and_sampled_ones_agree_with_the_trainer(self, run: Run) -> None:
        for row, sequence in joined(run, source="update"):
            sampled = sequence["sampled_mask"] != 0
            assert np.isnan(sequence["logprobs"][~sampled]).all()
            np.testing.assert_allclose(row["logprobs"][sampled], sequence["logprobs"][sampled], atol=5e-4)

    def test_rollout_routing_of_the_turns_tiles_the_row_without_gap_or_overlap(self, run: Run) -> None:
        parts: dict[str, list[tuple[int, int]]] = {}
        for row in run.sink.routing:
            if row["source"] == "rollout":
                parts.setdefault(row["sequence_id"], []).append((row["first_position"], len(row["experts"])))
        for row in run.sink.rollouts:
            reached = 0
            for first, count in sorted(parts[row["sequence_id"]]):
                assert first == reached
                reached += count
            last_turn_sampled = row["sampled_mask"][-1] == 1
            assert not last_turn_sampled or reached == len(row["prompt_tokens"]) + len(row["response_tokens"]) - 1

    def test_rollout_routing_of_later_turns_is_the_trainers_at_the_same_positions(self, run: Run) -> None:
        trained = {row["sequence_id"]: row["experts"] for row in run.sink.routing if row["source"] == "update"}
        same = [
            np.sort(row["experts"], -1) == np.sort(trained[row["sequence_id"]][row["first_position"] :][: len(row["experts"])], -1)
            for row in run.sink.routing
            if row["source"] == "rollout" and row["first_position"] > 0
        ]
        assert same
        assert np.concatenate(same).mean() > 0.999


class TestRloo:
    """RLOO with a reference, tempered and truncated sampling, bfloat16 autocast."""

    @pytest.fixture(scope="class")
    def run(self, tiny_model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
        return train(
            tiny_model_folder,
            tmp_path_factory.mktemp("output"),
            algorithm="rloo",
            beta=0.05,
            temperature=0.7,
            top_k=5,
            bf16=True,
            max_steps=2,
        )

    def test_old_reference_and_loss_logprobs_join_every_rollout(self, run: Run) -> None:
        assert run.hooks.failures == {}
        names = {row["sequence_id"] for row in run.sink.rollouts}
        assert len(names) == 16
        for source in ("trainer", "reference", "update"):
            assert {row["sequence_id"] for row, _ in joined(run, source=source)} == names

    def test_truncated_sampling_is_labelled_and_never_below_the_untruncated_trainer(self, run: Run) -> None:
        gaps = np.concatenate([sequence["logprobs"] - row["logprobs"] for row, sequence in joined(run, source="trainer")])
        assert {(row["top_k"], row["temperature"], row["logprob_mode"]) for row in run.sink.rollouts} == {(5, 0.7, "processed")}
        assert {(row["temperature"], row["logprob_mode"]) for row, _ in joined(run, source="trainer")} == {(0.7, "tempered")}
        # dropping all but 5 tokens divides by their mass: log-probabilities rise, up to bfloat16 noise
        assert np.mean(gaps) > 0.05

    def test_autocast_is_the_compute_dtype_and_the_weights_stay_float32(self, run: Run) -> None:
        assert {(row["dtype"], row["weight_dtype"]) for row in run.sink.scores} == {("bfloat16", "float32")}

    def test_reward_is_the_mean_that_trl_logs(self, run: Run) -> None:
        for step in (0, 1):
            rewards = [row["reward"] for row in run.sink.rollouts if row["step"] == step]
            assert np.mean(rewards) == pytest.approx(run.log[step]["reward"], abs=1e-6)


def test_logprobs_that_a_rollout_function_returns_are_the_rollouts(tiny_model_folder: Path, tmp_path: Path) -> None:
    def rollout(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        ids = trainer.processing_class.apply_chat_template(prompts, add_generation_prompt=True, return_dict=False)
        return {
            "prompt_ids": ids,
            "completion_ids": [[10, 11, 12, 13] for _ in ids],
            "logprobs": [[-1.0, -2.0, 0.0, -3.0] for _ in ids],
            "env_mask": [[1, 1, 0, 1] for _ in ids],
        }

    run = train(tiny_model_folder, tmp_path, rollout_func=rollout, max_steps=1)
    assert run.hooks.failures == {}
    assert len(run.sink.rollouts) == 8
    for row in run.sink.rollouts:
        np.testing.assert_array_equal(row["logprobs"], [-1.0, -2.0, np.nan, -3.0])  # the environment's token was never sampled
        assert list(row["sampled_mask"]) == list(row["loss_mask"]) == [1, 1, 0, 1]
        assert row["backend"] == "rollout_func"
        assert "logprob_mode" not in row or row["logprob_mode"] is None  # only the function's author knows
    assert run.sink.requests == []  # what the function did is not seen


class OwnLoss(trl.trainer.grpo_trainer.GRPOTrainer):  # type: ignore[misc]
    """A user's trainer with a loss of its own."""

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Any:
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        logprobs = self._get_per_token_logps_and_entropies(model, ids, mask, inputs["completion_ids"].size(1))[0]
        return -(logprobs * inputs["advantages"].unsqueeze(1) * inputs["completion_mask"]).mean()


class NoLogprobs(trl.trainer.grpo_trainer.GRPOTrainer):  # type: ignore[misc]
    """A user's trainer whose loss never asks TRL for log-probabilities."""

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Any:
        return model(input_ids=inputs["completion_ids"], attention_mask=inputs["completion_mask"]).logits.mean()


def test_a_subclass_with_its_own_loss_is_recorded_through_the_methods_that_it_still_calls(tiny_model_folder: Path, tmp_path: Path) -> None:
    run = train(tiny_model_folder, tmp_path, trainer_class=OwnLoss, max_steps=1)
    assert run.hooks.failures == {}
    assert {row["sequence_id"] for row, _ in joined(run, source="update")} == {row["sequence_id"] for row in run.sink.rollouts}


def test_a_loss_without_logprobs_is_said_to_be_missing(tiny_model_folder: Path, tmp_path: Path) -> None:
    run = train(tiny_model_folder, tmp_path, trainer_class=NoLogprobs, max_steps=1)
    assert run.hooks.failures == {}
    assert [event["name"] for event in run.sink.events] == ["loss forwards"]
    assert len(run.sink.rollouts) == 8


def test_continuous_batching_has_tokens_but_no_sampling_logprobs_and_says_so(tiny_model_folder: Path, tmp_path: Path) -> None:
    def answers(self: Any, prompts: list[list[int]], **kwargs: Any) -> dict[str, Any]:
        return {f"req_{index}": SimpleNamespace(generated_tokens=[10, 11, 2]) for index in range(len(prompts))}

    with pytest.MonkeyPatch.context() as patch:  # transformers' own manager wants a GPU; TRL's code around it is what runs here
        patch.setattr(transformers.generation.utils.GenerationMixin, "generate_batch", answers, raising=False)
        run = train(tiny_model_folder, tmp_path, max_steps=1, use_transformers_continuous_batching=True)
    assert run.hooks.failures == {}
    assert {(row["backend"], "logprobs" in row) for row in run.sink.rollouts} == {("transformers.continuous_batching", False)}
    assert [event["name"] for event in run.sink.events] == ["sampling log-probabilities"]
    assert len(run.sink.links) == len(run.sink.requests) == 8


def test_a_reward_of_none_is_missing_not_zero(tiny_model_folder: Path, tmp_path: Path) -> None:
    def sometimes(completions: list[Any], **kwargs: Any) -> list[float | None]:
        return [None if index % 4 == 0 else value for index, value in enumerate(reward_letters(completions))]

    run = train(tiny_model_folder, tmp_path, reward_funcs=sometimes, max_steps=1)
    assert [row["reward"] is None for row in run.sink.rollouts] == [True, False, False, False] * 2
