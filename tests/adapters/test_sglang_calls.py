"""The SGLang adapter on a front end that answers as SGLang does: streaming, aborting and updating in ways that a real run meets rarely."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rlaudit import recording
from rlaudit.capture.engines import sglang_tokenizer_manager
from rlaudit.capture.engines.sglang_managers import facts_of
from rlaudit.capture.engines.sglang_plugin import register
from rlaudit.capture.engines.sglang_routing import decoded
from rlaudit.capture.engines.sglang_rows import sampling_parameters
from rlaudit.capture.hooks import Attachment, HookLog

from .sinks import CollectingSink

PROMPT = [5, 6, 7]


class Sink(CollectingSink):
    """Keeps rows; opt-ins are those of ``opted``."""

    def __init__(self) -> None:
        super().__init__()
        self.opted: set[str] = set()

    def wants(self, what: str) -> bool:
        return what in self.opted or what in ("requests", "routing", "weights")

    def record_request(self, **columns: Any) -> None:
        """Token lists stay as they came: None is a missing one."""
        single = {name: value[0] if isinstance(value, list) else value for name, value in columns.items()}
        self.requests.append(single)


class Request:
    """As ``GenerateReqInput``."""

    def __init__(self, rid: Any = "r", input_ids: Any = None, sampling_params: Any = None, **more: Any) -> None:
        self.rid = rid
        self.input_ids = PROMPT if input_ids is None else input_ids
        self.sampling_params = sampling_params or {}
        self.return_logprob: Any = None
        self.logprob_start_len: Any = None
        self.top_logprobs_num: Any = None
        self.token_ids_logprob: Any = None
        self.return_routed_experts = False
        self.stream = False
        self.is_single = True
        self.extra_key: str | None = None
        self.__dict__.update(more)


def answer(tokens: list[int], rid: str = "r", reason: str | None = "length", logprobs: bool = True, **meta: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "id": rid,
        "finish_reason": reason and {"type": reason},
        "weight_version": "default",
        "prompt_tokens": 3,
        **meta,
    }
    if logprobs:
        found["output_token_logprobs"] = [[-float(token), token, None] for token in tokens]
    return {"text": "", "output_ids": tokens, "meta_info": found}


def frontend() -> ModuleType:
    """A module with a TokenizerManager that yields what it is given."""

    class TokenizerManager:
        incremental_streaming_output = False
        preferred_sampling_params = None

        def __init__(self, items: list[Any]) -> None:
            self.items = items
            self.seen: list[Any] = []
            self.is_pause = False
            self.version = "default"
            self.server_args = SimpleNamespace(enable_return_routed_experts=True, dp_size=1, disaggregation_mode="null")
            text = SimpleNamespace(num_hidden_layers=2, num_experts=8, num_experts_per_tok=2)
            self.model_config = SimpleNamespace(
                dtype="torch.bfloat16", quantization=None, hf_text_config=text, vocab_size=64, context_len=100
            )

        def config_value(self, name: str) -> str:
            return self.version

        def abort_request(self, rid: str) -> None:
            self.seen.append(("abort", rid))

        async def generate_request(self, obj: Any, request: Any = None) -> Any:
            self.seen.append(obj)
            if str(obj.rid).startswith("rlaudit-probe-"):
                entries = [[None, obj.input_ids[0], None], *([-0.5, token, None] for token in obj.input_ids[1:])]
                counted = {"prompt_tokens": len(obj.input_ids), "input_token_logprobs": entries, "weight_version": self.version}
                yield answer([9], obj.rid, **counted)
                return
            for value in self.items:
                yield value

        async def update_weights_from_disk(self, obj: Any, request: Any = None) -> Any:
            if obj.weight_version is not None and obj.success:
                self.version = obj.weight_version
            return obj.success, "told", 0

        async def update_weight_version(self, obj: Any) -> None:
            self.version = obj.new_version

        async def continue_generation(self, obj: Any) -> None:
            self.is_pause = False

    module = ModuleType("sglang.srt.managers.tokenizer_manager")
    module.TokenizerManager = TokenizerManager  # type: ignore[attr-defined]
    return module


@pytest.fixture
def sink() -> Iterator[Sink]:
    made = Sink()
    recording.set_sink(made)
    yield made
    recording.set_sink(None)


@pytest.fixture
def module() -> Iterator[ModuleType]:
    made, log = frontend(), HookLog()
    attachment = Attachment(sglang_tokenizer_manager.ADAPTER, made, log)
    sglang_tokenizer_manager.attach(attachment)
    yield made
    attachment.detach()
    assert log.failures == {}


def call(module: ModuleType, items: list[Any], obj: Request) -> list[Any]:
    """What a client gets that reads the generator to its end."""
    manager = module.TokenizerManager(items)

    async def consume() -> list[Any]:
        return [value async for value in manager.generate_request(obj)]

    return asyncio.run(consume())


def update(version: str | None = None, success: bool = True) -> Any:
    return SimpleNamespace(weight_version=version, success=success, flush_cache=True)


def test_only_the_finished_chunk_of_a_cumulative_stream_makes_a_row(module: ModuleType, sink: Sink) -> None:
    call(module, [answer([1], reason=None), answer([1, 2], reason=None), answer([1, 2, 3])], Request(stream=True))
    assert [row["output_tokens"] for row in sink.requests] == [[1, 2, 3]]
    assert sink.requests[0]["logprobs"] == [-1.0, -2.0, -3.0]


def test_the_deltas_of_an_incremental_stream_are_joined(module: ModuleType, sink: Sink) -> None:
    module.TokenizerManager.incremental_streaming_output = True  # type: ignore[attr-defined]
    call(module, [answer([1], reason=None), answer([2], reason=None), answer([3])], Request(stream=True))
    assert sink.requests[0]["output_tokens"] == [1, 2, 3]
    assert sink.requests[0]["logprobs"] == [-1.0, -2.0, -3.0]


def test_a_closed_stream_is_an_abort_with_the_last_chunk(module: ModuleType, sink: Sink) -> None:
    manager = module.TokenizerManager([answer([1], reason=None), answer([1, 2], reason=None), answer([1, 2, 3])])

    async def leave() -> None:
        chunks = manager.generate_request(Request(stream=True))
        await chunks.__anext__()
        await chunks.__anext__()
        await chunks.aclose()

    asyncio.run(leave())
    assert [(row["finish_reasons"], row["output_tokens"]) for row in sink.requests] == [("abort", [1, 2])]
    assert not facts_of(manager).calls


def test_an_abort_in_the_queue_takes_its_tokens_from_the_chunk_before(module: ModuleType, sink: Sink) -> None:
    last = answer([2], reason="abort", logprobs=False, completion_tokens=2)
    call(module, [answer([1, 2], reason=None, logprobs=False), last], Request(stream=True))
    assert sink.requests[0]["output_tokens"] == [1, 2]


def test_samples_of_a_prompt_follow_each_other(module: ModuleType, sink: Sink) -> None:
    prompts = [[5, 6, 7], [8, 9, 10]] * 2  # as SGLang repeats them
    obj = Request(["a", "b", "x", "y"], prompts, [{"n": 2, "top_k": 3}] * 4, parallel_sample_num=2, is_single=False)
    call(module, [[answer([i], f"s{i}") for i in range(4)]], obj)
    assert [row["input_tokens"] for row in sink.requests] == [[5, 6, 7], [5, 6, 7], [8, 9, 10], [8, 9, 10]]
    assert [row["parent_ids"] for row in sink.requests] == ["a", "a", "b", "b"]
    assert {row["top_k"] for row in sink.requests} == {3}


def test_input_that_the_engine_counts_differently_is_unknown(module: ModuleType, sink: Sink) -> None:
    call(module, [answer([1], prompt_tokens=40)], Request())
    assert sink.requests[0]["input_tokens"] is None


def test_logprobs_of_other_tokens_are_not_recorded(module: ModuleType, sink: Sink) -> None:
    wrong = answer([1, 2])
    wrong["output_ids"] = [1, 3]
    call(module, [wrong], Request())
    assert "logprobs" not in sink.requests[0]


def test_health_checks_and_embeddings_are_no_calls(module: ModuleType, sink: Sink) -> None:
    call(module, [answer([1])], Request("HEALTH_CHECK_1"))
    embedding = Request()
    del embedding.return_logprob
    call(module, [{"embedding": [0.0], "meta_info": {"id": "e", "finish_reason": {"type": "stop"}}}], embedding)
    assert sink.requests == []


def test_opting_into_logprobs_asks_for_them_and_hides_them(module: ModuleType, sink: Sink, capsys: pytest.CaptureFixture[str]) -> None:
    sink.opted = {"record_logprobs"}
    obj = Request()
    got = call(module, [answer([1, 2])], obj)
    assert obj.return_logprob is True
    assert "output_token_logprobs" not in got[0]["meta_info"]
    assert sink.requests[0]["logprobs"] == [-1.0, -2.0]


def test_what_the_client_asked_for_itself_stays_in_its_answer(module: ModuleType, sink: Sink) -> None:
    sink.opted = {"record_logprobs", "record_routing"}
    got = call(module, [answer([1, 2], routed_experts="")], Request(return_logprob=True, return_routed_experts=True))
    assert {"output_token_logprobs", "routed_experts"} <= got[0]["meta_info"].keys()


def test_routing_is_shaped_by_the_models_configuration() -> None:
    rows = np.arange(12, dtype=np.int32).reshape(3, 2, 2)
    np.testing.assert_array_equal(decoded(base64.b64encode(rows.tobytes()).decode(), 2, 2), rows)


def test_a_requests_parameters_come_before_the_servers_preferred_ones() -> None:
    manager = SimpleNamespace(preferred_sampling_params={"temperature": 0.5, "top_p": 0.9})
    assert sampling_parameters(manager, Request(sampling_params={"temperature": 0.7}), 0) == {"temperature": 0.7, "top_p": 0.9}


def test_updates_count_where_they_succeed_and_pieces_of_one_count_once(module: ModuleType, sink: Sink) -> None:
    manager = module.TokenizerManager([answer([1])])

    async def train() -> None:
        await manager.update_weights_from_disk(update("v1", success=False))
        for _ in range(3):
            await manager.update_weights_from_disk(update())
        await manager.update_weight_version(SimpleNamespace(new_version="v1"))
        async for _ in manager.generate_request(Request()):
            pass
        await manager.update_weights_from_disk(update("v2"))
        await manager.update_weights_from_disk(update("v3"))

    asyncio.run(train())
    expected = [("default", 1), ("v1", 1), ("v2", 2), ("v3", 3)]
    assert [(row["policy_version"], row["policy_syncs"]) for row in sink.weights] == expected
    assert sink.requests[0]["policy_syncs"] == 1
    assert next((row["name"], row.get("message")) for row in sink.events) == ("update_weights_from_disk", "failed: told")


def test_a_label_alone_is_no_received_weight(module: ModuleType, sink: Sink) -> None:
    manager = module.TokenizerManager([])
    asyncio.run(manager.update_weight_version(SimpleNamespace(new_version="v1")))
    assert sink.weights == []
    assert [row["name"] for row in sink.events] == ["update_weight_version"]


def test_a_call_that_waits_out_a_pause_belongs_to_the_weights_that_came_in_it(module: ModuleType, sink: Sink) -> None:
    manager = module.TokenizerManager([answer([1], reason=None), answer([1, 2])])
    manager.is_pause = True

    async def main() -> None:
        chunks = manager.generate_request(Request(stream=True))
        await chunks.__anext__()  # SGLang itself would wait here; what counts is that the call began in the pause
        await manager.update_weights_from_disk(update("v1"))
        await manager.continue_generation(SimpleNamespace())
        async for _ in chunks:
            pass

    asyncio.run(main())
    assert sink.requests[0]["policy_syncs"] == 1


def test_probes_come_before_the_first_call_and_the_first_after_an_update(module: ModuleType, sink: Sink) -> None:
    sink.opted = {"probe"}
    manager = module.TokenizerManager([answer([1])])

    async def train() -> None:
        for version in ("v1", "v2"):
            for _ in range(2):
                async for _ in manager.generate_request(Request()):
                    pass
            await manager.update_weights_from_disk(update(version))

    asyncio.run(train())
    assert [row.get("phase") for row in sink.requests] == ["probe", None, None, "probe", None, None]
    first = sink.requests[0]
    assert (first["input_logprobs"][:2], len(first["input_tokens"]), first["policy_syncs"]) == ([None, -0.5], 32, 0)
    assert sink.requests[3]["policy_syncs"] == 1
    assert manager.seen[0].extra_key == "rlaudit-probe-"


def test_no_probe_runs_beside_a_call(module: ModuleType, sink: Sink) -> None:
    manager = module.TokenizerManager([answer([1], reason=None), answer([1, 2])])

    async def main() -> None:
        first = manager.generate_request(Request("first", stream=True))
        await first.__anext__()
        sink.opted = {"probe"}
        async for _ in manager.generate_request(Request("second", stream=True)):
            pass
        await first.aclose()

    asyncio.run(main())
    assert {row.get("phase") for row in sink.requests} == {None}
    assert [row["name"] for row in sink.events] == ["probe"]


def test_the_plugin_does_nothing_where_nothing_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RLAUDIT_CAPTURE", raising=False)
    register()
    register()
    assert not recording.capturing()
