"""Stand-ins for the objects of vLLM's output processor that its adapter reads (vLLM 0.30.0), and a sink that keeps each call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

from rlaudit import recording
from rlaudit.capture.engines import vllm_engines, vllm_output
from rlaudit.capture.hooks import Attachment, HookLog


class Sink:
    """Keeps (table, columns) of each call. ``wanted``: what ``wants`` answers with True."""

    def __init__(self, *wanted: str) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.wanted = {"routing", *wanted}

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("record_"):
            raise AttributeError(name)
        return lambda **columns: self.calls.append((name.removeprefix("record_"), columns))

    def wants(self, what: str) -> bool:
        return what in self.wanted

    def of(self, table: str) -> list[dict[str, Any]]:
        return [columns for name, columns in self.calls if name == table]


@contextmanager
def recorded(*wanted: str) -> Iterator[Sink]:
    """A sink for a block, and nothing left of engines and synchronisations that earlier tests made."""
    sink = Sink(*wanted)
    vllm_engines.ENGINES.clear()
    vllm_engines._said.clear()
    vllm_engines.SYNCS.__init__()  # type: ignore[misc]  # every adapter holds this object
    recording.set_sink(sink)  # type: ignore[arg-type]
    try:
        yield sink
    finally:
        recording.set_sink(None)


class Parameters:
    """vLLM's SamplingParams, a msgspec structure."""

    __struct_fields__ = ("n", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "logprobs", "output_kind", "stop", "_derived")

    def __init__(self, **given: Any) -> None:
        neutral = {"n": 1, "temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "logprobs": 0}
        self.__dict__.update({**neutral, "output_kind": SimpleNamespace(name="CUMULATIVE"), "stop": {"b", "a"}, "_derived": 1, **given})


def logprob(value: float) -> Any:
    return SimpleNamespace(logprob=value)


class OutputProcessor:
    """Holds request states, as vLLM's does."""

    def __init__(self) -> None:
        self.request_states: dict[str, Any] = {}

    def add_request(self, request: Any, prompt: Any, parent_req: Any = None, request_index: int = 0, queue: Any = None) -> None:
        self.request_states[request.request_id] = RequestState(request, request_index)


class RequestState:
    """One sequence. ``advance`` is what vLLM does with new tokens."""

    def __init__(self, request: Any, index: int) -> None:
        self.request_id = request.request_id
        self.request_index = index
        self.prompt_token_ids = request.prompt_token_ids
        self.output_kind = request.sampling_params.output_kind
        self.detokenizer = SimpleNamespace(output_token_ids=[])
        wanted = request.sampling_params.logprobs is not None
        self.logprobs_processor = SimpleNamespace(logprobs=[] if wanted else None, prompt_logprobs=None)
        self.num_cached_tokens = 0
        self.streaming_input = False
        self.routed_experts: Any = None

    def _new_completion_output(self, token_ids: list[int], finish_reason: Any, stop_reason: Any) -> Any:
        kept = self.routed_experts if finish_reason is not None else None
        return SimpleNamespace(
            index=self.request_index, token_ids=token_ids, finish_reason=finish_reason, routed_experts=kept, logprobs=None
        )

    def advance(self, tokens: list[int], values: list[float] | None = None, finish: str | None = None) -> None:
        self.detokenizer.output_token_ids += tokens
        if values is not None and self.logprobs_processor.logprobs is not None:
            self.logprobs_processor.logprobs += [{t: logprob(v), 999: logprob(-0.1)} for t, v in zip(tokens, values, strict=True)]
        self._new_completion_output(list(tokens), finish, None)


class Engine:
    """An engine whose output processor is observed by the adapter."""

    def __init__(self, log: HookLog, **model: Any) -> None:
        self.processor = self.attached(log)
        dense = SimpleNamespace(num_hidden_layers=2)
        given = {"dtype": "torch.bfloat16", "quantization": None, "logprobs_mode": "raw_logprobs", "hf_text_config": dense, **model}
        self.facts = vllm_engines.EngineFacts(SimpleNamespace(model_config=SimpleNamespace(**given)))
        vllm_engines.ENGINES[self.processor] = self.facts

    @staticmethod
    def attached(log: HookLog) -> Any:
        module: Any = ModuleType("fake_output_processor")
        module.OutputProcessor = type("OutputProcessor", (OutputProcessor,), {"add_request": OutputProcessor.add_request})
        module.RequestState = RequestState
        attachment = Attachment(vllm_output.ADAPTER, module, log)
        vllm_output.attach(attachment)
        processor = module.OutputProcessor()
        processor.attachment = attachment
        return processor

    def request(self, name: str, prompt: list[int], parent: Any = None, index: int = 0, **parameters: Any) -> RequestState:
        request = SimpleNamespace(
            request_id=name, prompt_token_ids=prompt, sampling_params=Parameters(**parameters), arrival_time=1_700_000_000.0
        )
        self.processor.add_request(request, None, parent, index, None)
        return self.processor.request_states[name]  # type: ignore[no-any-return]

    def detach(self) -> None:
        self.processor.attachment.detach()


@contextmanager
def engine(*wanted: str, **model: Any) -> Iterator[tuple[Engine, Sink, HookLog]]:
    """An observed engine, what is recorded of it, and what failed; it is detached again."""
    log = HookLog()
    with recorded(*wanted) as sink:
        made = Engine(log, **model)
        try:
            yield made, sink, log
        finally:
            made.detach()


def fake_module(name: str, **classes: Any) -> Any:
    """A module of that name with these classes, for adapters that attach to it."""
    module: Any = ModuleType(name)
    vars(module).update(classes)
    return module


__all__ = ["Engine", "Parameters", "Sink", "engine", "fake_module", "logprob", "recorded"]
