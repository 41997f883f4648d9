"""How the vLLM adapter counts weight synchronisations, and what its options change; stand-ins for vLLM's classes."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from rlaudit.capture.engines import (
    vllm_async_engine,
    vllm_engines,
    vllm_inputs,
    vllm_llm_engine,
    vllm_opt_ins,
    vllm_probe,
    vllm_runner,
    vllm_weights,
    vllm_worker,
)
from rlaudit.capture.hooks import Attachment, HookLog
from tests.adapters.vllm_fakes import Sink, fake_module, recorded

SYNCS = vllm_engines.SYNCS


class AutoWeightsLoader:
    def load_weights(self, weights: Any) -> None: ...


class GPUModelRunner:
    def reload_weights(self) -> None:
        AutoWeightsLoader().load_weights(())

    def execute_model(self) -> None: ...


class Worker:
    def load_model(self) -> None:
        AutoWeightsLoader().load_weights(())


class AsyncLLM:
    def __init__(self, vllm_config: Any) -> None:
        self.output_processor = Processor()

    async def collective_rpc(self, method: str) -> None:
        if method == "reload_weights" and FAILING:
            raise RuntimeError("no such file")

    async def update_weight_version(self, new_version: str) -> None: ...


FAILING: list[bool] = []


@pytest.fixture
def sink() -> Any:
    """Observed classes and what is recorded of them."""
    log = HookLog()
    attachments = []
    for adapter, owner in (
        (vllm_weights, AutoWeightsLoader),
        (vllm_runner, GPUModelRunner),
        (vllm_worker, Worker),
        (vllm_async_engine, AsyncLLM),
    ):
        attachment = Attachment(adapter.ADAPTER, fake_module("fake", **{owner.__name__: owner}), log)
        adapter.attach(attachment)  # type: ignore[attr-defined]
        attachments.append(attachment)
    FAILING.clear()
    with recorded() as kept:
        yield kept
    for attachment in attachments:
        attachment.detach()
    assert log.failures == {}


def received(sink: Sink) -> list[tuple[str | None, int]]:
    return [(row.get("policy_version"), row["policy_syncs"]) for row in sink.of("weights")]


def test_the_first_load_is_no_synchronisation(sink: Sink) -> None:
    Worker().load_model()
    assert received(sink) == [(None, 0)]


def test_pieces_of_a_direct_load_are_one_synchronisation_and_one_row(sink: Sink) -> None:
    Worker().load_model()
    for update in (1, 2):
        for _ in range(5):
            AutoWeightsLoader().load_weights(())
        GPUModelRunner().execute_model()
        assert SYNCS.count == update
    assert received(sink) == [(None, 0), (None, 1), (None, 2)]


def test_a_reload_is_one_synchronisation_although_the_loader_is_observed_too(sink: Sink) -> None:
    GPUModelRunner().reload_weights()
    GPUModelRunner().reload_weights()
    assert received(sink) == [(None, 1), (None, 2)]


def test_a_label_without_weights_is_an_event_and_no_received_weights(sink: Sink) -> None:
    asyncio.run(AsyncLLM(config()).update_weight_version("step-1"))
    assert received(sink) == []
    (event,) = sink.of("event")
    assert (event["kind"], event["name"], event["detail"]["policy_version"]) == ("engine_control", "weight_version", "step-1")
    assert event["detail"]["new_weights"] is False


def test_a_label_after_weights_is_theirs_once(sink: Sink) -> None:
    engine = AsyncLLM(config())
    asyncio.run(engine.collective_rpc("reload_weights"))
    asyncio.run(engine.update_weight_version("step-1"))
    asyncio.run(engine.update_weight_version("step-2"))
    assert received(sink) == [(None, 1), ("step-1", 1)]


def test_an_update_that_failed_counts_for_nothing(sink: Sink) -> None:
    FAILING.append(True)
    with pytest.raises(RuntimeError):
        asyncio.run(AsyncLLM(config()).collective_rpc("reload_weights"))
    assert (received(sink), SYNCS.count) == ([], 0)


def test_other_calls_to_the_workers_count_for_nothing(sink: Sink) -> None:
    asyncio.run(AsyncLLM(config()).collective_rpc("get_model_inspection"))
    assert received(sink) == []


def processed(**parameters: Any) -> Any:
    class InputProcessor:
        def process_inputs(self, request_id: str, prompt: Any, params: Any) -> Any:
            return SimpleNamespace(sampling_params=params)

    log = HookLog()
    vllm_inputs.attach(Attachment(vllm_inputs.ADAPTER, fake_module("fake", InputProcessor=InputProcessor), log))
    result = InputProcessor().process_inputs("a", None, SimpleNamespace(**parameters))
    assert log.failures == {}
    return result.sampling_params.logprobs


def test_log_probabilities_are_asked_for_with_the_option_only() -> None:
    with recorded():
        assert processed(logprobs=None) is None
    with recorded("record_logprobs"):
        assert processed(logprobs=None) == 0
        assert processed(logprobs=5) == 5


def configured(config: Any) -> Any:
    class EngineArgs:
        def create_model_config(self) -> Any:
            return SimpleNamespace(enable_return_routed_experts=False, hf_text_config=config)

    log = HookLog()
    vllm_opt_ins.attach(Attachment(vllm_opt_ins.ADAPTER, fake_module("fake", EngineArgs=EngineArgs), log))
    result = EngineArgs().create_model_config()
    assert log.failures == {}
    return result.enable_return_routed_experts


def test_routed_experts_are_asked_for_with_the_option_and_of_models_that_have_them_only() -> None:
    routed, dense = SimpleNamespace(num_hidden_layers=2, num_experts=4), SimpleNamespace(num_hidden_layers=2)
    with recorded():
        assert configured(routed) is False
    with recorded("record_routing"):
        assert configured(routed) is True
        assert configured(dense) is False


class LLMEngine:
    """Counts probes: requests that the adapter makes by itself."""

    def __init__(self, vllm_config: Any) -> None:
        self.vllm_config = vllm_config
        self.output_processor = Processor()
        self.asked: list[str] = []

    def add_request(self, request_id: str, prompt: Any, params: Any) -> None:
        self.asked.append(request_id)
        self.output_processor.waiting += 1

    def step(self) -> None:
        self.output_processor.waiting -= 1

    def collective_rpc(self, method: str) -> None: ...


class Processor:
    waiting = 0

    def has_unfinished_requests(self) -> bool:
        return self.waiting > 0


def config(load_format: str = "auto", **parallel: Any) -> Any:
    return SimpleNamespace(
        model_config=SimpleNamespace(
            runner_type="generate",
            get_vocab_size=lambda: 768,
            max_model_len=64,
            dtype="torch.float32",
            quantization=None,
            hf_text_config=None,
        ),
        cache_config=SimpleNamespace(block_size=16),
        load_config=SimpleNamespace(load_format=load_format),
        parallel_config=SimpleNamespace(
            **{"data_parallel_size": 1, "distributed_executor_backend": "external_launcher", "world_size": 1, **parallel}
        ),
    )


@pytest.fixture
def attached(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setitem(vllm_probe.sys.modules, "vllm.sampling_params", fake_module("p", SamplingParams=SimpleNamespace))
    log = HookLog()
    attachment = Attachment(vllm_llm_engine.ADAPTER, fake_module("fake", LLMEngine=LLMEngine), log)
    vllm_llm_engine.attach(attachment)
    yield
    attachment.detach()
    assert log.failures == {}


def asked(made: LLMEngine) -> list[str]:
    return [name.rstrip("0123456789") for name in made.asked]


def test_the_probe_comes_with_the_engine_and_after_each_synchronisation_and_only_with_its_option(attached: Any) -> None:
    with recorded("probe"):
        made = LLMEngine(config())
        made.add_request("a", None, None)
        made.step()
        SYNCS.received()
        made.add_request("b", None, None)
        made.add_request("c", None, None)
    assert asked(made) == ["rlaudit-probe-", "a", "rlaudit-probe-", "b", "c"]
    with recorded():
        assert asked(LLMEngine(config())) == []


def test_random_weights_are_not_probed_before_they_are_replaced(attached: Any) -> None:
    with recorded("probe"):
        made = LLMEngine(config("dummy"))
        SYNCS.received()
        made.add_request("a", None, None)
    assert asked(made) == ["rlaudit-probe-", "a"]


def test_an_engine_that_several_processes_drive_is_not_probed(attached: Any) -> None:
    with recorded("probe") as sink:
        made = LLMEngine(config(world_size=2))
    assert asked(made) == []
    assert "several processes" in sink.of("event")[0]["message"]


def test_a_busy_engine_is_not_probed(attached: Any) -> None:
    with recorded("probe"):
        made = LLMEngine(config())
        made.add_request("a", None, None)
        SYNCS.received()
        made.add_request("b", None, None)
    assert asked(made) == ["rlaudit-probe-", "a", "b"]


@pytest.mark.parametrize(("vocabulary", "block", "longest", "count"), [(768, 16, 64, 15), (150_000, 128, 4096, 32), (50, 16, 8, 6)])
def test_probe_tokens_fit_into_a_block_and_the_vocabulary(vocabulary: int, block: int, longest: int, count: int) -> None:
    tokens = vllm_probe.probe_tokens(vocabulary, block, longest)
    assert len(set(tokens)) == len(tokens) == count
    assert all(0 <= token < vocabulary for token in tokens)
