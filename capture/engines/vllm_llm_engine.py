"""Adapter for vLLM's synchronous engine, behind ``LLM``: its settings, weight updates through it, and the probe.

Read: vLLM 0.30.0, ``vllm.v1.engine.llm_engine.LLMEngine``.
"""

from __future__ import annotations

from typing import Any

from rlaudit.capture.hooks import Adapter, Attachment, Call, Target

from .vllm_engines import SYNCS
from .vllm_front import engine_made, rpc_begins, rpc_done
from .vllm_probe import before_request, probe

ADAPTER = Adapter(
    name="vLLM engine",
    kind="engine",
    distribution="vllm",
    versions=">=0.24",
    module="vllm.v1.engine.llm_engine",
    targets=(
        Target("LLMEngine.__init__", ("vllm_config",)),
        Target("LLMEngine.add_request", ("request_id", "prompt", "params")),
        Target("LLMEngine.collective_rpc", ("method",)),
        Target("LLMEngine.set_weight_version", ("weight_version",), required=False),
    ),
    records="the engine's settings, weight updates through it",
)


def _made(token: Any, result: Any, call: Call) -> None:
    engine_made(call)
    probe(call["self"])


def _named(token: Any, result: Any, call: Call) -> None:
    SYNCS.labelled(call["weight_version"])


def attach(attachment: Attachment) -> None:
    """Observe the engine's making, its weight updates and the moment before a request."""
    attachment.observe("LLMEngine.__init__", after=_made)
    attachment.observe("LLMEngine.add_request", before=before_request)
    attachment.observe("LLMEngine.collective_rpc", before=rpc_begins, after=rpc_done)
    attachment.observe("LLMEngine.set_weight_version", after=_named)
