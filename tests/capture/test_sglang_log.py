"""Runs from SGLang's request log, in the lines that SGLang 0.5.19 writes."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlaudit import Run
from rlaudit.capture.importers.sglang_log import import_sglang_log
from rlaudit.errors import BadOption

EXPERTS = np.arange(16, dtype=np.int32).reshape(4, 2, 2) % 8


def line(event: str, second: int, **data: Any) -> str:
    stamp = f"2026-01-01T00:00:{second:02}.500000"
    return f"[{stamp}] " + json.dumps({"timestamp": stamp, "event": event, "rid": "r1", **data}) + "\n"


def finished(temperature: float = 1.0, tokens: list[Any] | None = None) -> str:
    obj = {"rid": "r1", "input_ids": [5, 6, 7], "sampling_params": {"temperature": temperature, "top_k": 4}, "routed_experts_start_len": 0}
    meta = {
        "id": "r1", "finish_reason": {"type": "length", "length": 2}, "prompt_tokens": 3, "weight_version": "v3", "cached_tokens": 2,
        "num_retractions": 0, "output_token_logprobs": [[-0.5, 8, None], [-0.25, 9, None]],
        "routed_experts": base64.b64encode(EXPERTS.tobytes()).decode(),
    }  # fmt: skip
    return line("request.finished", 3, obj=obj, out={"text": "ab", "output_ids": tokens or [8, 9], "meta_info": meta})


@pytest.fixture
def log(tmp_path: Path) -> Path:
    folder = tmp_path / "logs"
    folder.mkdir()
    received = line("request.received", 1, obj={"input_ids": [5, 6, 7]})
    (folder / "host_0.log").write_text(received + finished() + "[x] {broken\n", encoding="utf-8")
    return folder


def test_a_finished_call_becomes_a_row(log: Path, tmp_path: Path) -> None:
    done = import_sglang_log(log, tmp_path / "run")
    (row,) = Run.open(tmp_path / "run").read("requests").to_pylist()
    assert (row["request_id"], row["input_tokens"], row["output_tokens"]) == ("r1", [5, 6, 7], [8, 9])
    assert (row["logprobs"], row["logprob_mode"], row["top_k"]) == ([-0.5, -0.25], "tempered", 4)
    assert (row["policy_version"], row["cached_tokens"], row["finish_reason"]) == ("v3", 2, "length")
    assert (row["finished"] - row["started"]).total_seconds() == 2
    assert (done.requests, done.routing, done.unshaped, done.damaged) == (1, 0, 1, 1)


def test_routed_experts_take_their_shape_from_the_models_configuration(log: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"num_hidden_layers": 2, "num_experts": 8, "num_experts_per_tok": 2}), encoding="utf-8")
    import_sglang_log(log, tmp_path / "run", config)
    (row,) = Run.open(tmp_path / "run").read("routing").to_pylist()
    np.testing.assert_array_equal(np.frombuffer(row["experts"], np.uint8).reshape(4, 2, 2), EXPERTS)
    assert (row["request_id"], row["first_position"], row["layer_ids"]) == ("r1", 0, [0, 1])


def test_at_other_temperatures_the_log_does_not_say_what_logprobs_are_of(log: Path, tmp_path: Path) -> None:
    (log / "host_0.log").write_text(finished(0.7), encoding="utf-8")
    import_sglang_log(log, tmp_path / "run")
    assert Run.open(tmp_path / "run").read("requests")["logprob_mode"].to_pylist() == [None]


def test_shortened_calls_are_refused_with_what_to_do(log: Path, tmp_path: Path) -> None:
    (log / "host_0.log").write_text(finished(tokens=[8, "...", 9]), encoding="utf-8")
    with pytest.raises(BadOption, match="--log-requests-level 3"):
        import_sglang_log(log, tmp_path / "run")
    assert not (tmp_path / "run").exists()
