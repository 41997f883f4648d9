"""What is known of the SGLang engines of this process: their settings, their weight synchronisations, their running calls.

Read: SGLang 0.5.19, ``sglang.srt.managers.tokenizer_manager.TokenizerManager`` and ``sglang.srt.configs.model_config.ModelConfig``.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
import weakref
from typing import Any

from rlaudit import recording

from .vllm_engines import process_label

UNTEMPERED_VARIABLE = "SGLANG_RETURN_ORIGINAL_LOGPROB"
"""Where the environment sets it, SGLang returns log-probabilities before temperature; answers don't say so."""


class Running:
    """A call of ``generate_request`` that the engine works on.

    syncs: synchronisations behind the weights that began it. waiting: True until the engine may begin it (paused, or weights are coming).
    last: sub-request to the last unfinished chunk and its log-probabilities. parts: sub-request to output ids and log-probabilities so far,
    where chunks are deltas; None where they are cumulative. hide_logprobs, hide_routing: True where only capture asked for them.
    """

    __slots__ = ("hide_logprobs", "hide_routing", "last", "parts", "phase", "started", "syncs", "waiting")

    def __init__(self, syncs: int, waiting: bool, deltas: bool) -> None:
        self.started = time.time()
        self.syncs = syncs
        self.waiting = waiting
        self.phase: str | None = None
        self.hide_logprobs = False
        self.hide_routing = False
        self.last: dict[str, tuple[Any, Any]] = {}
        self.parts: dict[str, tuple[list[int], list[Any]]] | None = {} if deltas else None


class ManagerFacts:
    """One engine's front end. syncs: weight synchronisations that it saw, whose pieces count as one until the model computes again."""

    def __init__(self, manager: Any) -> None:
        number = next(_numbers)
        config = manager.model_config
        quantised = getattr(config, "quantization", None)
        self.engine_id = process_label() if number == 0 else f"{process_label()}-{number}"
        self.dtype = str(config.dtype).removeprefix("torch.")
        self.weight_dtype = str(quantised) if quantised else self.dtype
        self.text_config = getattr(config, "hf_text_config", None)
        self.vocabulary = int(config.vocab_size)
        self.longest = int(config.context_len)
        self.calls: set[Running] = set()
        self.syncs = 0
        self.updating = 0
        self.burst = False  # weights arrived and nothing was computed with them yet
        self.given: str | None = None  # the label that came with them
        self.probed: tuple[int, str | None] | None = None
        self.probe_skipped: tuple[int, str | None] | None = None
        self.probing: asyncio.Future[None] | None = None

    def begin(self, manager: Any, deltas: bool) -> Running:
        """A call begins, or waits for a pause or an update to end."""
        running = Running(self.syncs, bool(getattr(manager, "is_pause", False)) or self.updating > 0, deltas)
        if not running.waiting:
            self.burst = False
        self.calls.add(running)
        return running

    def released(self, manager: Any) -> None:
        """A pause or an update ended: what waited begins, and what was paused goes on, with the weights that are there now."""
        if bool(getattr(manager, "is_pause", False)) or self.updating:
            return
        for running in self.calls:
            if running.waiting:
                running.waiting = False
                self.burst = False

    def received(self, manager: Any, given: str | None) -> None:
        """Weights arrived; ``given``: the label that came with them, None where none did."""
        another = given is not None and self.given is not None and given != self.given
        if self.burst and not another:
            if given is not None and self.given is None:
                self.given = given
                self.record(manager)
            return
        self.burst, self.given = True, given
        self.syncs += 1
        for running in self.calls:
            if running.waiting:
                running.syncs = self.syncs
        self.record(manager)

    def labelled(self, manager: Any, version: str) -> None:
        """The caller named the weights. Names the weights that just came without a label; alone it says nothing of weights."""
        if self.burst and self.given is None:
            self.given = version
            self.record(manager)

    def weights(self, manager: Any) -> tuple[int, str | None]:
        """What is known of the weights that a call would be computed with: synchronisations and label."""
        return self.syncs, label(manager)

    def record(self, manager: Any) -> None:
        """One row of ``weights``: what the engine has now."""
        recording.record_weights(fact="received", policy_version=label(manager), policy_syncs=self.syncs, engine_id=self.engine_id)


def label(manager: Any) -> str | None:
    """The engine's own label of its weights; it is "default" until somebody gives another."""
    if hasattr(manager, "config_value"):
        value = manager.config_value("weight_version")
    else:
        value = getattr(manager.server_args, "weight_version", None)
    return None if value is None else str(value)


def untempered() -> bool:
    """True where this process's environment, which the scheduler inherits, asks for log-probabilities before temperature."""
    return os.environ.get(UNTEMPERED_VARIABLE, "false").lower() in ("true", "1")


def facts_of(manager: Any) -> ManagerFacts:
    """What is known of a TokenizerManager; looked up on its first call."""
    found = _managers.get(manager)
    if found is None:
        found = _managers[manager] = ManagerFacts(manager)
    return found


_numbers = itertools.count()
_managers: weakref.WeakKeyDictionary[Any, ManagerFacts] = weakref.WeakKeyDictionary()
