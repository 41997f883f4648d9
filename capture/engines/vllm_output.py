"""Adapter for vLLM's output processor: every finished sequence of LLM, AsyncLLM and the server, in their front-end process.

Read: vLLM 0.30.0, ``vllm.v1.engine.output_processor``: ``OutputProcessor.add_request``, ``RequestState._new_completion_output``. Both are
there with these parameters in 0.10.2 to 0.32.0.
"""

from __future__ import annotations

from typing import Any

from rlaudit.capture.hooks import Adapter, Attachment, Call, Target

from .vllm_engines import ENGINES, SYNCS, Running, say_once
from .vllm_requests import record_finished

ADAPTER = Adapter(
    name="vLLM output",
    kind="engine",
    distribution="vllm",
    versions=">=0.24",
    module="vllm.v1.engine.output_processor",
    targets=(
        Target("OutputProcessor.add_request", ("request", "prompt", "parent_req", "request_index", "queue")),
        Target("RequestState._new_completion_output", ("token_ids", "finish_reason", "stop_reason")),
    ),
    records="requests: tokens, log-probabilities, sampling parameters; routed experts where the engine returns them",
)


def _added(token: Any, result: Any, call: Call) -> None:
    processor, request = call["self"], call["request"]
    facts = ENGINES.get(processor)
    if facts is None:
        say_once("requests", "an output processor of an engine that rlaudit has not seen being made")
        return
    state = processor.request_states.get(request.request_id)
    if request.sampling_params is not None and state is not None and state not in facts.running:
        running = Running(request, call["parent_req"], SYNCS)
        facts.running[state] = running
        state.rlaudit_running = (running, facts)


def _made(token: Any, result: Any, call: Call) -> None:
    state = call["self"]
    mine = getattr(state, "rlaudit_running", None)
    if mine is None:
        return
    running, facts = mine
    if state.logprobs_processor.prompt_logprobs and state.output_kind.name == "DELTA":
        running.prompt_logprobs = state.logprobs_processor.prompt_logprobs  # taken from the processor with the first delta
    if call["finish_reason"] is None:
        return
    if not state.streaming_input:
        facts.running.pop(state, None)
        del state.rlaudit_running
    record_finished(state, result, running, facts, SYNCS.version)


def attach(attachment: Attachment) -> None:
    """Observe requests coming in and sequences being finished."""
    attachment.observe("OutputProcessor.add_request", after=_added)
    attachment.observe("RequestState._new_completion_output", after=_made)
