"""Adapter for vLLM's asynchronous engine, behind the OpenAI server and token-in/token-out clients.

Read: vLLM 0.30.0, ``vllm.v1.engine.async_llm.AsyncLLM``. Its methods for weights are coroutines: an update counts when it
has been done, and not where it failed.
"""

from __future__ import annotations

from typing import Any

from rlaudit import recording
from rlaudit.capture.hooks import Adapter, Attachment, Call, Target

from .vllm_engines import SYNCS, say_once
from .vllm_front import engine_made, rpc_begins, rpc_done

ADAPTER = Adapter(
    name="vLLM asynchronous engine",
    kind="engine",
    distribution="vllm",
    versions=">=0.24",
    module="vllm.v1.engine.async_llm",
    targets=(
        Target("AsyncLLM.__init__", ("vllm_config",)),
        Target("AsyncLLM.collective_rpc", ("method",)),
        Target("AsyncLLM.update_weight_version", ("new_version",), required=False),
    ),
    records="the engine's settings, weight updates through it",
)


def _made(token: Any, result: Any, call: Call) -> None:
    engine_made(call)
    if recording.wants("probe"):
        say_once("probe", "AsyncLLM serves requests at any time: a probe could come between them")


def _named(token: Any, result: Any, call: Call) -> None:
    SYNCS.labelled(call["new_version"])


def attach(attachment: Attachment) -> None:
    """Observe the engine's making and its weight updates."""
    attachment.observe("AsyncLLM.__init__", after=_made)
    attachment.observe_coroutine("AsyncLLM.collective_rpc", before=rpc_begins, after=rpc_done)
    attachment.observe_coroutine("AsyncLLM.update_weight_version", after=_named)
