"""What is known of the vLLM engines of this process: their settings, their weight synchronisations, their running requests.

Read: vLLM 0.30.0, ``vllm.config.ModelConfig`` and ``vllm.config.ParallelConfig``.
"""

from __future__ import annotations

import itertools
import os
import weakref
from typing import Any

from rlaudit import recording
from rlaudit.capture.process import host_name

LOGPROB_MODES = {"raw_logprobs": "raw", "processed_logprobs": "processed"}
"""``ModelConfig.logprobs_mode`` to ``logprob_mode``. The other modes, raw_logits and processed_logits, are no log-probabilities."""

_said: set[tuple[str, str]] = set()


def say_once(name: str, message: str) -> None:
    """An event that something is not recorded, once a process for each name and reason."""
    if (name, message) not in _said:
        _said.add((name, message))
        recording.record_event(kind="not_recorded", name=name, message=message)


class Synchronisations:
    """Weight synchronisations that this process saw, as front end or as worker; a front end with its worker inside counts each once.

    count: synchronisations since the start; the first load from a checkpoint is none. version: the label that the caller
    gave the engine last, None where it gave none.
    """

    def __init__(self) -> None:
        self.count = 0
        self.version: str | None = None
        self.first_load = 0  # depth of load_model calls
        self.burst = False  # weights arrived and nothing was computed with them yet
        self.unnamed = False  # weights arrived and the caller has not named them

    def received(self) -> None:
        """Weights arrived. Pieces of one update come in many calls: until the model computes again, they are one synchronisation."""
        if self.first_load or self.burst:
            return
        self.burst = True
        for engine in list(ENGINES.values()):
            engine.mark_running(self.count, self.version)
        self.count += 1
        self.unnamed = True
        self.record(None)  # the label so far is that of the weights before

    def record(self, version: str | None) -> None:
        """One row of ``weights``: what the engine has now, and what it is called where that is known."""
        recording.record_weights(fact="received", policy_version=version, policy_syncs=self.count, engine_id=process_label())

    def labelled(self, version: str) -> None:
        """The caller gave the weights a name, which proves nothing about them: an event.

        Where weights arrived since the last name, it is theirs: a row of ``weights`` says so, with the same count.
        """
        for engine in list(ENGINES.values()):
            engine.mark_running(self.count, self.version)
        self.version = str(version)
        recording.record_event(
            kind="engine_control",
            name="weight_version",
            message=f"The engine's weights are called {version} from here on.",
            detail={"engine_id": process_label(), "policy_version": self.version, "policy_syncs": self.count, "new_weights": self.unnamed},
        )
        if self.unnamed:
            self.unnamed = False
            self.record(self.version)


def process_label() -> str:
    """Host and process id."""
    return f"{host_name()}-{os.getpid()}"


class Running:
    """A request that the engine works on. marks: (output tokens, label) at each change of weights, the label being that until there."""

    __slots__ = ("marks", "params", "parent", "prompt_logprobs", "started", "syncs", "turns", "version")

    def __init__(self, request: Any, parent: Any, syncs: Synchronisations) -> None:
        self.params = request.sampling_params
        self.started = request.arrival_time
        self.parent = parent
        self.prompt_logprobs: Any = None
        self.syncs = syncs.count
        self.version = syncs.version
        self.marks: list[tuple[int, str | None]] = []
        self.turns = 0


class EngineFacts:
    """One engine of this process. ``routed`` is made on first use: (number of experts, absolute MoE layers, all layers) or None."""

    def __init__(self, vllm_config: Any) -> None:
        model = vllm_config.model_config
        number = next(_numbers)
        self.engine_id = process_label() if number == 0 else f"{process_label()}-{number}"
        self.dtype = str(model.dtype).removeprefix("torch.")
        self.weight_dtype = str(model.quantization) if model.quantization else self.dtype
        self.logprobs_mode = str(getattr(model, "logprobs_mode", "raw_logprobs"))
        self.text_config = getattr(model, "hf_text_config", None)
        self.running: weakref.WeakKeyDictionary[Any, Running] = weakref.WeakKeyDictionary()

    def mark_running(self, syncs: int, version: str | None) -> None:
        """The weights change now: note how far each running request is."""
        for state, running in list(self.running.items()):
            detokenizer = state.detokenizer
            if detokenizer is not None and running.syncs <= syncs:
                running.marks.append((len(detokenizer.output_token_ids), version))


_numbers = itertools.count()
SYNCS = Synchronisations()
ENGINES: weakref.WeakKeyDictionary[Any, EngineFacts] = weakref.WeakKeyDictionary()
"""Output processor (one an engine) to what is known of its engine."""
