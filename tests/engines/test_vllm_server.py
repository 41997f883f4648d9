"""vLLM's OpenAI server in processes of its own: its rows are what its clients got, also after it was killed."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.engines.vllm_environment import captured, made_models, vllm_commands
from tests.integration.environments import run

pytestmark = pytest.mark.integration


class Served(NamedTuple):
    """Answers of the server, and what was recorded: calls and routing by their input."""

    answers: dict[str, Any]
    calls: dict[tuple[int, ...], list[dict[str, Any]]]
    routing: list[dict[str, Any]]
    folder: Path


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    commands = vllm_commands()
    folder = tmp_path_factory.mktemp("served")
    models = made_models(commands, folder)
    captured(commands, folder / "run", "vllm_serve.py", models / "moe", folder / "answers.json")

    def asked(sql: str) -> list[dict[str, Any]]:
        return json.loads(run([commands / "rlaudit", "query", folder / "run", sql, "--format", "json"]))  # type: ignore[no-any-return]

    calls: dict[tuple[int, ...], list[dict[str, Any]]] = {}
    for row in asked("select * from requests order by started, request_id"):
        calls.setdefault(tuple(row["input_tokens"]), []).append(row)
    answers = json.loads((folder / "answers.json").read_text())
    return Served(answers, calls, asked("select request_id, tokens, top_k, hex(experts) as experts from routing"), folder)


def agree(row: dict[str, Any], tokens: list[int], logprobs: list[float]) -> None:
    assert row["output_tokens"] == tokens
    assert row["logprobs"] == pytest.approx(logprobs, abs=1e-6)


def test_a_completion_is_recorded_as_the_client_got_it(served: Served) -> None:
    (row,) = served.calls[5, 6, 7, 8, 9]
    (choice,) = served.answers["plain"]["choices"]
    assert choice["prompt_token_ids"] == row["input_tokens"]
    agree(row, choice["token_ids"], choice["logprobs"]["token_logprobs"])
    assert (row["temperature"], row["finish_reason"], row["backend"]) == (1.0, "length", "vllm")


def test_samples_of_one_call_are_a_row_each(served: Served) -> None:
    rows = {tuple(row["output_tokens"]): row for row in served.calls[15, 16, 17, 18]}
    choices = served.answers["several"]["choices"]
    assert len(choices) == len(rows) == 2
    for choice in choices:
        agree(rows[tuple(choice["token_ids"])], choice["token_ids"], choice["logprobs"]["token_logprobs"])
    assert len({row["parent_id"] for row in rows.values()}) == 1
    assert None not in {row["parent_id"] for row in rows.values()}


def test_a_stream_is_one_row(served: Served) -> None:
    (row,) = served.calls[25, 26, 27]
    choices = [chunk["choices"][0] for chunk in served.answers["stream"] if chunk["choices"]]
    tokens = [token for choice in choices for token in choice["token_ids"] or ()]
    logprobs = [value for choice in choices if choice["logprobs"] for value in choice["logprobs"]["token_logprobs"]]
    agree(row, tokens, logprobs)


def test_routed_experts_are_there_for_every_call_also_for_the_stream_whose_client_got_none(served: Served) -> None:
    (choice,) = served.answers["plain"]["choices"]
    sent = np.load(io.BytesIO(base64.b64decode(choice["routed_experts"])))
    recorded = {row["request_id"]: row for row in served.routing}
    row = recorded[served.calls[5, 6, 7, 8, 9][0]["request_id"]]
    kept = np.frombuffer(bytes.fromhex(row["experts"]), np.uint8).reshape(row["tokens"], -1, row["top_k"])
    np.testing.assert_array_equal(kept, sent)
    assert recorded.keys() == {one["request_id"] for rows in served.calls.values() for one in rows}
