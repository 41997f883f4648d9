"""Adapter for vLLM's worker: the first load of weights, and those that come through its weight-transfer engine.

Read: vLLM 0.30.0, ``vllm.v1.worker.gpu_worker.Worker`` (the CPU's worker is one too): ``load_model``, ``start_weight_update``,
``finish_weight_update``.
"""

from __future__ import annotations

from typing import Any

from rlaudit.capture.hooks import Adapter, Attachment, Call, Target

from .vllm_engines import SYNCS

ADAPTER = Adapter(
    name="vLLM worker",
    kind="engine",
    distribution="vllm",
    versions=">=0.24",
    module="vllm.v1.worker.gpu_worker",
    targets=(
        Target("Worker.load_model"),
        Target("Worker.start_weight_update", required=False),
        Target("Worker.finish_weight_update", required=False),
    ),
    records="weight synchronisations",
)


def _load_begins(call: Call) -> bool:
    SYNCS.first_load += 1
    return True


def _load_over(token: Any) -> None:
    SYNCS.first_load -= 1


def _loaded(token: Any, result: Any, call: Call) -> None:
    if SYNCS.count == 0:  # an engine made later in this process has its own first load, which is no synchronisation either
        SYNCS.record(None)


def _update_begins(call: Call) -> None:
    SYNCS.burst = False


def attach(attachment: Attachment) -> None:
    """Observe the first load, and the beginning and end of a weight transfer."""
    attachment.observe("Worker.load_model", before=_load_begins, after=_loaded, cleanup=_load_over)
    attachment.observe("Worker.start_weight_update", before=_update_begins)
    attachment.observe("Worker.finish_weight_update", after=lambda token, result, call: SYNCS.received())
