"""Adapter for TRL's RLOOTrainer."""

from __future__ import annotations

from rlaudit.capture.hooks import Adapter, Attachment

from .trl_observer import RECORDS, TrlObserver, targets

ADAPTER = Adapter(
    name="TRL RLOO",
    kind="framework",
    distribution="trl",
    versions=">=0.24",
    module="trl.trainer.rloo_trainer",
    targets=targets("RLOOTrainer"),
    records=RECORDS,
)


def attach(attachment: Attachment) -> None:
    """Observe RLOOTrainer."""
    TrlObserver().attach(attachment, "RLOOTrainer")
