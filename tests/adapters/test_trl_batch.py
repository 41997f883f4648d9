"""Bookkeeping of a TRL batch: which call produced which tokens, real lengths under masks, and what can't be known."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from rlaudit.capture.frameworks import trl_settings as settings
from rlaudit.capture.frameworks.trl_batch import (
    FinishedBatch,
    GenerationBatch,
    Turn,
    finish_reason,
    from_label,
    link_turns,
    rollout_logprobs,
    routed_rows,
    row_lengths,
    sampled_segments,
)

PROMPTS = [[1, 2], [3]]


def batch(completions: list[list[int]], turns: list[tuple[list[list[int]], list[list[int]]]], tool_mask: Any = None) -> GenerationBatch:
    made = GenerationBatch(step=0, phase="train", rank=0, group_size=2)
    made.prompts, made.completions, made.tool_mask = PROMPTS[: len(completions)], completions, tool_mask
    for number, (inputs, outputs) in enumerate(turns):
        made.turns.append(Turn(number, inputs, 0.0, outputs))
    return made


def test_segments_are_the_sampled_spans_and_a_trailing_tool_result_ends_in_an_empty_one() -> None:
    assert sampled_segments([1, 1, 1]) == [(0, 3)]
    assert sampled_segments([1, 1, 0, 0, 1]) == [(0, 2), (4, 5)]
    assert sampled_segments([1, 0, 0]) == [(0, 1), (3, 3)]
    assert sampled_segments([]) == [(0, 0)]


def test_a_single_turn_links_row_by_row() -> None:
    links = link_turns(batch([[5, 6], [7]], [(PROMPTS, [[5, 6], [7]])]))
    assert [(link.turn, link.request, link.row, link.start, link.end, link.method, link.ambiguous) for link in links] == [
        (0, 0, 0, 0, 2, "framework", False),
        (0, 1, 1, 0, 1, "framework", False),
    ]


def test_a_later_turn_belongs_to_the_rows_that_go_on_after_tool_tokens() -> None:
    made = batch([[5], [7, 9, 9, 8]], [(PROMPTS, [[5], [7]]), ([[3, 7, 9, 9]], [[8]])], [[1], [1, 0, 0, 1]])
    assert [(link.turn, link.request, link.row, link.start, link.end) for link in link_turns(made)] == [
        (0, 0, 0, 0, 1),
        (0, 1, 1, 0, 1),
        (1, 0, 1, 3, 4),
    ]


def test_a_differing_token_keeps_its_link_so_that_it_can_be_seen() -> None:
    made = batch([[5, 6]], [([[1, 2]], [[5, 99]])])
    assert [(link.row, link.end, link.method) for link in link_turns(made)] == [(0, 2, "framework")]


def test_without_trls_order_rows_are_found_by_content_and_clones_are_ambiguous() -> None:
    made = batch([[5], [5]], [(PROMPTS[:1], [[5]])])
    made.prompts = [[1, 2], [1, 2]]
    (link,) = link_turns(made)
    assert (link.method, link.ambiguous, link.row) == ("content", True, 0)


def test_a_call_that_fits_no_row_has_no_link() -> None:
    made = batch([[5], [6]], [([[4, 4]], [[5]])])
    assert link_turns(made) == []


def test_a_cut_last_turn_is_linked_to_what_was_kept_of_it() -> None:
    made = batch([[5], [6, 0, 7]], [(PROMPTS, [[5], [6]]), ([[3, 6, 0]], [[7, 8, 9]]), ([[9]], [[9]])], None)
    later = [link for link in link_turns(made) if link.turn == 1]
    assert [(link.row, link.start, link.end, link.method) for link in later] == [(1, 2, 3, "content")]


def test_logprobs_of_a_row_whose_drawn_tokens_are_others_are_missing_not_wrong() -> None:
    made = batch([[5, 6], [7, 8]], [(PROMPTS, [[5, 6], [7, 8]])])
    drawn = np.array([[5, 6], [7, 99]])
    made.turns[0].sampled = SimpleNamespace(tokens=drawn, logprobs=np.array([[-1.0, -2.0], [-3.0, -4.0]], np.float32), prompt_width=2)
    values, there, mismatches = rollout_logprobs(made, link_turns(made), width=3)
    assert there.tolist() == [[1, 1, 0], [0, 0, 0]]
    assert values[0, :2].tolist() == [-1.0, -2.0]
    assert mismatches == 1


def test_each_position_of_several_turns_is_routed_once() -> None:
    made = batch([[5, 6], [7, 9, 9, 8]], [(PROMPTS, [[5, 6], [7]]), ([[3, 7, 9, 9]], [[8]])], [[1, 1], [1, 0, 0, 1]])
    made.turns[0].sampled, made.turns[0].routed = SimpleNamespace(prompt_width=2), SimpleNamespace(experts=np.zeros((2, 3, 1, 1)))
    made.turns[1].sampled, made.turns[1].routed = SimpleNamespace(prompt_width=4), SimpleNamespace(experts=np.zeros((1, 4, 1, 1)))
    rows = routed_rows(made, link_turns(made))
    # row 0: prompt 2 + response 2 - 1 = 3 positions; row 1 (one pad): its prompt's 1 position, then the tokens 7, 9, 9 in the second call
    assert rows[0].mask.astype(int).tolist() == [[1, 1, 1], [0, 1, 0]]
    assert (rows[1].rows, rows[1].first_positions, rows[1].mask.astype(int).tolist()) == ([1], [1], [[0, 1, 1, 1]])


def test_a_truncated_row_whose_mask_is_zeroed_keeps_the_length_that_the_engine_returned() -> None:
    assert row_lengths([[1, 1, 0], [0, 0, 0]], [[5, 6], [7, 8, 9]]) == [2, 3]


def test_positions_leave_out_padding_and_responses_taken_out_of_attention() -> None:
    finished = FinishedBatch(step=0, phase="train", rank=0, prompt_lengths=[2, 1], lengths=[2, 2], attended=[2, 0])
    assert finished.positions([0, 1], prompt_width=2, width=5).astype(int).tolist() == [[1, 1, 1, 1, 0], [0, 1, 0, 0, 0]]


def test_row_labels_name_batch_and_row() -> None:
    made = batch([[5], [6]], [])
    assert [from_label(label) for label in made.labels(2)] == [(made.number, 0), (made.number, 1)]


def test_groups_straddle_ranks_where_a_rank_holds_half_of_one() -> None:
    first = GenerationBatch(step=0, phase="train", rank=0, group_size=4, first_row=0, number=7)
    second = GenerationBatch(step=0, phase="train", rank=1, group_size=4, first_row=2, number=7)
    assert first.group_ids(2) == second.group_ids(2) == ["g7-0", "g7-0"]


def test_finish_reasons_are_only_what_the_tokens_prove() -> None:
    assert finish_reason([5, 2], [2], 4) == "stop"
    assert finish_reason([5, 6, 7, 8], [2], 4) == "length"
    assert finish_reason([5, 6], [2], 4) is None
    assert finish_reason([], [2], 4) is None


def test_vllm_sampling_takes_the_users_generation_kwargs_and_its_own_words_for_everything_allowed() -> None:
    engine = SimpleNamespace(temperature=0.9, top_p=1.0, top_k=-1, min_p=None, repetition_penalty=1.0, generation_kwargs={"top_p": 0.8})
    trainer = SimpleNamespace(use_vllm=True, vllm_generation=engine, args=SimpleNamespace(generation_kwargs={"top_p": 0.8}))
    assert settings.sampling(trainer) == (0.9, 0.8, 0, 0.0, 1.0)


class Peft(torch.nn.Module):
    """What TRL uses of a PEFT model: adapters that can be disabled, and their names."""

    def __init__(self) -> None:
        super().__init__()
        self.peft_config = {"default": None}
        self.active_adapter = "default"
        self.layer = torch.nn.Linear(1, 1)
        self.layer._disable_adapters = False  # type: ignore[assignment]


def test_a_peft_reference_is_told_from_the_policy_by_its_adapters() -> None:
    model = Peft()
    trainer = SimpleNamespace(ref_model=None, model=model)
    assert not settings.is_reference(trainer, model)
    model.layer._disable_adapters = True  # type: ignore[assignment]
    assert settings.is_reference(trainer, model)
    model.layer._disable_adapters = False  # type: ignore[assignment]
    model.peft_config["ref"] = None
    assert not settings.is_reference(trainer, model)
    model.active_adapter = "ref"
    assert settings.is_reference(trainer, model)


def test_weight_dtype_is_the_one_that_most_elements_have() -> None:
    model = torch.nn.ModuleList([torch.nn.Linear(9, 9).to(torch.bfloat16), torch.nn.Linear(2, 2)])
    assert settings.weight_dtype(model) == "bfloat16"
    model.to(torch.float16)
    assert settings.weight_dtype(model) == "float16"
