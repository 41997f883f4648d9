"""Adapter for what a user can let rlaudit ask vLLM for: routed experts (``--record-routing``), log-probabilities (``--record-logprobs``).

Read: vLLM 0.30.0, ``vllm.engine.arg_utils.EngineArgs.create_model_config`` (``enable_return_routed_experts``).
"""

from __future__ import annotations

from typing import Any

from rlaudit import recording
from rlaudit.capture.hooks import Adapter, Attachment, Call, Target
from rlaudit.capture.process import say

from .vllm_engines import say_once
from .vllm_moe import routed_layers

ADAPTER = Adapter(
    name="vLLM settings",
    kind="engine",
    distribution="vllm",
    versions=">=0.24",
    module="vllm.engine.arg_utils",
    targets=(Target("EngineArgs.create_model_config"),),
    records="--record-routing: the engine returns routed experts",
)


def changed(name: str, message: str) -> None:
    """Say, as an event and on standard error, that capture changed a setting as its option asked for."""
    recording.record_event(kind="setting_changed", name=name, message=message)
    say(message)


def _configured(token: Any, result: Any, call: Call) -> None:
    if not recording.wants("record_routing") or result.enable_return_routed_experts:
        return
    if routed_layers(result.hf_text_config) is None:
        say_once("routing", "the model has no routed experts")
        return
    result.enable_return_routed_experts = True
    changed("enable_return_routed_experts", "vLLM returns routed experts, because of --record-routing")


def attach(attachment: Attachment) -> None:
    """Observe the making of the model's configuration."""
    attachment.observe("EngineArgs.create_model_config", after=_configured)
