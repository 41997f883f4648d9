"""Adapter for SGLang's settings: ``--record-routing`` lets the engine return routed experts.

Read: SGLang 0.5.19, ``sglang.srt.server_args.ServerArgs.resolve_once``, which the launching process runs before it starts the schedulers
(earlier versions resolve in ``__post_init__``), and ``sglang.srt.state_capturer.routed_experts.RoutedExpertsCapturer``, which fails for
a model without ``num_experts_per_tok``: so the model's configuration is read first.
"""

from __future__ import annotations

import importlib
from typing import Any

from rlaudit import recording
from rlaudit.capture.hooks import Adapter, Attachment, Call, Target

from .vllm_engines import say_once
from .vllm_moe import routed_layers
from .vllm_opt_ins import changed

ADAPTER = Adapter(
    name="SGLang settings",
    kind="engine",
    distribution="sglang",
    versions=">=0.5.7",
    module="sglang.srt.server_args",
    targets=(Target("ServerArgs.resolve_once", required=False), Target("ServerArgs.__post_init__", required=False)),
    records="--record-routing: the engine returns routed experts",
)
_READERS = ("sglang.srt.utils.hf_transformers_utils", "sglang.srt.hf_transformers_utils")


def _text_config(arguments: Any) -> Any:
    """The model's text configuration, read as SGLang reads it."""
    for name in _READERS:
        try:
            reader = importlib.import_module(name)
        except ImportError:
            continue
        config = reader.get_config(arguments.model_path, trust_remote_code=arguments.trust_remote_code, revision=arguments.revision)
        return config.get_text_config()
    raise ImportError("SGLang has no reader of model configurations where rlaudit looks for it")


def _resolving(call: Call) -> None:
    arguments = call["self"]
    done = getattr(arguments, "_resolution_finished", False)
    if done or not recording.wants("record_routing") or arguments.enable_return_routed_experts:
        return
    config = _text_config(arguments)
    if routed_layers(config) is None or not isinstance(getattr(config, "num_experts_per_tok", None), int):
        say_once("routing", "the model has no routed experts")
        return
    arguments.enable_return_routed_experts = True
    changed("enable_return_routed_experts", "SGLang returns routed experts, because of --record-routing")


def attach(attachment: Attachment) -> None:
    """Observe the settings being resolved."""
    path = "ServerArgs.resolve_once" if attachment.has("ServerArgs.resolve_once") else "ServerArgs.__post_init__"
    attachment.observe(path, before=_resolving)
