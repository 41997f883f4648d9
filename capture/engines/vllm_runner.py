"""Adapter for vLLM's model runner, in the worker process: reloads, and the computing that ends an update.

Read: vLLM 0.30.0, ``vllm.v1.worker.gpu_model_runner.GPUModelRunner`` (also the CPU's base class).
"""

from __future__ import annotations

from rlaudit.capture.hooks import Adapter, Attachment, Call, Target

from .vllm_engines import SYNCS

ADAPTER = Adapter(
    name="vLLM model runner",
    kind="engine",
    distribution="vllm",
    versions=">=0.24",
    module="vllm.v1.worker.gpu_model_runner",
    targets=(
        Target("GPUModelRunner.reload_weights"),
        Target("GPUModelRunner.execute_model"),
    ),
    records="weight synchronisations",
)


def _computes(call: Call) -> None:
    SYNCS.burst = False


def observe_runner(attachment: Attachment) -> None:
    """Observe a class ``GPUModelRunner``; both of vLLM's have these methods."""
    attachment.observe("GPUModelRunner.reload_weights", before=_computes, after=lambda token, result, call: SYNCS.received())
    attachment.observe("GPUModelRunner.execute_model", before=_computes)


def attach(attachment: Attachment) -> None:
    """Observe the runner."""
    observe_runner(attachment)
