"""Adapter for vLLM's Model Runner V2. Read: vLLM 0.30.0, ``vllm.v1.worker.gpu.model_runner.GPUModelRunner``."""

from __future__ import annotations

from rlaudit.capture.hooks import Attachment

from .vllm_runner import ADAPTER as _FIRST
from .vllm_runner import observe_runner

ADAPTER = _FIRST._replace(name="vLLM model runner V2", module="vllm.v1.worker.gpu.model_runner")


def attach(attachment: Attachment) -> None:
    """Observe the runner."""
    observe_runner(attachment)
