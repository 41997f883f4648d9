"""Adapter for vLLM's input processor: ``--record-logprobs`` asks for the sampled token's log-probability where a request asks for none.

Read: vLLM 0.30.0, ``vllm.v1.engine.input_processor.InputProcessor.process_inputs``, which returns a request with its own copy of the
sampling parameters.
"""

from __future__ import annotations

from typing import Any

from rlaudit import recording
from rlaudit.capture.hooks import Adapter, Attachment, Call, Target

from .vllm_opt_ins import changed

ADAPTER = Adapter(
    name="vLLM inputs",
    kind="engine",
    distribution="vllm",
    versions=">=0.24",
    module="vllm.v1.engine.input_processor",
    targets=(Target("InputProcessor.process_inputs", ("request_id", "prompt", "params")),),
    records="--record-logprobs: requests return log-probabilities",
)

_told: list[bool] = []


def _processed(token: Any, result: Any, call: Call) -> None:
    params = result.sampling_params
    if params is None or params.logprobs is not None or not recording.wants("record_logprobs"):
        return
    params.logprobs = 0
    if not _told:
        _told.append(True)
        changed("logprobs", "vLLM returns the sampled tokens' log-probabilities, because of --record-logprobs")


def attach(attachment: Attachment) -> None:
    """Observe requests on their way in."""
    attachment.observe("InputProcessor.process_inputs", after=_processed)
