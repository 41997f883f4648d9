"""What is going on in a TRL trainer while rlaudit follows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from rlaudit import recording
from rlaudit.capture.engines.transformers_generate import SamplingTap, close_tap
from rlaudit.capture.models.routing import RoutingWindow

from .trl_batch import FinishedBatch, GenerationBatch, Turn
from .trl_records import Update


@dataclass
class LossForward:
    """A loss forward's rows while it runs. rows: (batch number, row) in the forward's order; prompt_width: padded.

    outer: the loss call around this one (TRL's ``compute_loss`` calls ``_compute_loss``). recorded: its log-probabilities were seen.
    """

    rows: list[tuple[int, int]]
    prompt_width: int
    completion_mask: Any
    outer: LossForward | None = None
    recorded: bool = False


REMEMBERED_BATCHES = 8
"""Scored batches of each phase whose rows' lengths are kept: TRL reuses one, some users keep a few."""


class Open(NamedTuple):
    """What a hook opened around a call and must close."""

    turn: Turn | None = None
    source: str | None = None
    tap: SamplingTap | None = None
    window: RoutingWindow | None = None

    def close(self) -> None:
        """Close taps and windows; twice is harmless."""
        if self.tap is not None:
            close_tap(self.tap)
        if self.window is not None:
            self.window.close()


class TrainerState:
    """What is going on in one trainer. Everything of a batch but its rows' lengths goes when the batch is scored."""

    def __init__(self) -> None:
        self.batch: GenerationBatch | None = None
        self.loss: LossForward | None = None
        self.finished: dict[int, FinishedBatch] = {}
        self.pending: list[Update] = []
        self.step: int | None = None
        self.said: set[str] = set()

    def remember(self, number: int, finished: FinishedBatch) -> None:
        """Keep what later uses of a batch need, and let the oldest of its phase go (evaluation must not push out training)."""
        self.finished[number] = finished
        same = sorted(other for other, batch in self.finished.items() if batch.phase == finished.phase)
        for old in same[:-REMEMBERED_BATCHES]:
            del self.finished[old]

    def say(self, kind: str, name: str, message: str) -> None:
        """An event, once a trainer and name."""
        if name not in self.said:
            self.said.add(name)
            recording.record_event(kind=kind, name=name, message=message)


class WeightSyncs:
    """Counts weight synchronisations with vLLM in this process, for all trainers of it."""

    def __init__(self) -> None:
        self.count = 0
        self.generating: list[Any] = []

    def sent(self) -> None:
        """The trainer that is generating just sent its weights; ``policy_updates`` is unknown outside of a generation."""
        self.count += 1
        updates = int(self.generating[-1].state.global_step) if self.generating else None
        recording.record_weights(
            fact="sent", policy_version=None if updates is None else str(updates), policy_updates=updates, policy_syncs=self.count
        )


SYNCS = WeightSyncs()
