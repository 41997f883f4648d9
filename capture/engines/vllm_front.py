"""What the two front ends of vLLM have in common: engines made, weights updated through them."""

from __future__ import annotations

from rlaudit.capture.hooks import Call

from .vllm_engines import ENGINES, SYNCS, EngineFacts

UPDATES = ("reload_weights", "finish_weight_update")
"""Methods of the workers, called through ``collective_rpc``, that complete a weight update."""


def engine_made(call: Call) -> None:
    """An engine with an output processor is ready."""
    ENGINES[call["self"].output_processor] = EngineFacts(call["vllm_config"])


def rpc_begins(call: Call) -> int | None:
    """The count before a call that updates weights; None for other calls."""
    return SYNCS.count if call["method"] in UPDATES else None


def rpc_done(before: int | None, result: object, call: Call) -> None:
    """Count the update where the worker is elsewhere; a worker in this process has counted it."""
    if before is not None and SYNCS.count == before:
        SYNCS.burst = False
        SYNCS.received()
        SYNCS.burst = False
