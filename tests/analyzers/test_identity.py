"""Token-in, token-out: what the engine saw against what the trainer consumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlaudit.analyzers.identity import Identity, TokenMismatch, check_identity
from tests.synthetic import write_run


def identity(
    path: Path,
    *,
    prompt: list[int],
    response: list[int],
    calls: list[tuple[list[int], list[int]]],
    requests: list[dict[str, Any]] | None = None,
) -> Identity:
    """One sequence and its engine calls (input, output), linked in order over its sampled tokens."""
    links, made, start = [], [], 0
    for turn, (given, returned) in enumerate(calls):
        start = len(given) - len(prompt) if turn else 0
        links.append({"step": 0, "sequence_id": "a", "request_id": f"r{turn}", "turn": turn, "start": start, "end": start + len(returned)})
        made.append({"step": 0, "request_id": f"r{turn}", "input_tokens": given, "output_tokens": returned})
    sequences = [{"step": 0, "sequence_id": "a", "prompt_tokens": prompt, "response_tokens": response}]
    run = write_run(path / "run", sequences=sequences, links=links, requests=made if requests is None else requests)
    return check_identity(run, (0, 0))


def test_equal_tokens_of_two_turns_are_clean(tmp_path: Path) -> None:
    found = identity(tmp_path, prompt=[1, 2], response=[3, 4, 50, 60, 7], calls=[([1, 2], [3, 4]), ([1, 2, 3, 4, 50, 60], [7])])
    assert (found.links, found.outputs_compared, found.inputs_compared) == (2, 2, 2)
    assert (found.output_mismatches, found.input_mismatches, found.examples) == (0, 0, [])


def test_a_changed_output_token_is_found_where_it_is(tmp_path: Path) -> None:
    found = identity(tmp_path, prompt=[1, 2], response=[3, 9, 5], calls=[([1, 2], [3, 4, 5])])
    assert found.output_mismatches == 1
    assert found.examples == [TokenMismatch(0, "a", 0, "output", 1, 3, 3, "re-tokenised text")]


def test_a_retokenised_first_turn_shows_in_the_second_turns_input(tmp_path: Path) -> None:
    found = identity(tmp_path, prompt=[1, 2], response=[3, 4, 50, 7], calls=[([1, 2], [3, 4]), ([1, 2, 3, 9, 50], [7])])
    assert (found.output_mismatches, found.input_mismatches) == (0, 1)
    assert found.examples == [TokenMismatch(0, "a", 1, "input", 3, 5, 5, "re-tokenised text")]


def test_another_prompt_is_an_input_mismatch(tmp_path: Path) -> None:
    found = identity(tmp_path, prompt=[1, 2], response=[3], calls=[([0, 1, 2], [3])])
    assert found.input_mismatches == 1
    assert found.examples[0].position == 0  # a token before the prompt: everything after it is shifted


@pytest.mark.parametrize(("response", "trainer_length", "kind"), [([3, 4], 2, "special tokens"), ([], 0, "truncation")])
def test_a_cut_output_is_a_mismatch_of_length(tmp_path: Path, response: list[int], trainer_length: int, kind: str) -> None:
    found = identity(tmp_path, prompt=[1], response=response, calls=[([1], [3, 4, 5])])
    assert found.examples == [TokenMismatch(0, "a", 0, "output", None, 3, trainer_length, kind)]


def test_a_link_to_an_unknown_call_is_counted_and_not_compared(tmp_path: Path) -> None:
    found = identity(tmp_path, prompt=[1], response=[2], calls=[([1], [2])], requests=[])
    assert (found.unknown_requests, found.outputs_compared) == (1, 0)


def test_calls_that_know_no_step_are_found_by_their_id(tmp_path: Path) -> None:
    requests = [{"request_id": "r0", "input_tokens": [1], "output_tokens": [9]}]
    assert identity(tmp_path, prompt=[1], response=[2], calls=[([1], [2])], requests=requests).output_mismatches == 1
