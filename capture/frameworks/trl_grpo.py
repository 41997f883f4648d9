"""Adapter for TRL's GRPOTrainer."""

from __future__ import annotations

from rlaudit.capture.hooks import Adapter, Attachment

from .trl_observer import RECORDS, TrlObserver, targets

ADAPTER = Adapter(
    name="TRL GRPO",
    kind="framework",
    distribution="trl",
    versions=">=0.24",
    module="trl.trainer.grpo_trainer",
    targets=targets("GRPOTrainer"),
    records=RECORDS,
)


def attach(attachment: Attachment) -> None:
    """Observe GRPOTrainer."""
    TrlObserver().attach(attachment, "GRPOTrainer")
