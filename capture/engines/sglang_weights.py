"""Observing SGLang's weight updates and controls in its front end.

Read: SGLang 0.5.19, ``TokenizerManager.update_weights_from_disk``, ``pause_generation``, ``continue_generation``, and
``TokenizerControlMixin.update_weights_from_tensor``, ``_distributed``, ``_ipc``, ``update_weight_version``, ``flush_cache``. Updates return
(success, message, ...). Without a pause an update waits until no call is running; in a pause it doesn't.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlaudit import recording
from rlaudit.capture.hooks import Attachment, Call

from .sglang_managers import facts_of

UPDATES = ("update_weights_from_disk", "update_weights_from_tensor", "update_weights_from_distributed", "update_weights_from_ipc")


def _event(name: str, message: str | None, engine_id: str, **detail: Any) -> None:
    recording.record_event(kind="engine_control", name=name, message=message, detail={"engine_id": engine_id, **detail})


def update_begins(call: Call) -> Any:
    """Weights are coming."""
    facts_of(call["self"]).updating += 1
    return call["self"]


def _updated(name: str) -> Callable[[Any, Any, Call], None]:
    def after(manager: Any, result: Any, call: Call) -> None:
        facts, obj = facts_of(manager), call["obj"]
        if not result[0]:
            _event(name, f"failed: {result[1]}", facts.engine_id)
            return
        given = getattr(obj, "weight_version", None)
        facts.received(manager, None if given is None else str(given))
        if getattr(obj, "flush_cache", True) is False:
            _event(name, "the prefix cache was not flushed with this update", facts.engine_id, policy_syncs=facts.syncs)

    return after


def update_over(manager: Any) -> None:
    """The update ended, well or not."""
    facts = facts_of(manager)
    facts.updating -= 1
    facts.released(manager)


def _labelled(token: Any, result: Any, call: Call) -> None:
    facts, version = facts_of(call["self"]), str(call["obj"].new_version)
    _event("update_weight_version", None, facts.engine_id, policy_version=version)
    facts.labelled(call["self"], version)


def _paused(token: Any, result: Any, call: Call) -> None:
    _event("pause_generation", None, facts_of(call["self"]).engine_id, mode=str(getattr(call["obj"], "mode", "abort")))


def _continued(token: Any, result: Any, call: Call) -> None:
    facts = facts_of(call["self"])
    _event("continue_generation", None, facts.engine_id)
    if facts.calls:
        facts.burst = False  # what was paused computes again
    facts.released(call["self"])


def _flushed(token: Any, result: Any, call: Call) -> None:
    success = bool(getattr(result, "success", True))
    _event("flush_cache", None if success else "failed: calls were running", facts_of(call["self"]).engine_id, success=success)


def observe_weights(attachment: Attachment) -> None:
    """Observe updates and controls."""
    for name in UPDATES:
        attachment.observe_coroutine(f"TokenizerManager.{name}", before=update_begins, after=_updated(name), cleanup=update_over)
    attachment.observe_coroutine("TokenizerManager.update_weight_version", after=_labelled)
    attachment.observe_coroutine("TokenizerManager.pause_generation", after=_paused)
    attachment.observe_coroutine("TokenizerManager.continue_generation", after=_continued)
    attachment.observe_coroutine("TokenizerManager.flush_cache", after=_flushed)
