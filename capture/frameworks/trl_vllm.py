"""Adapter for TRL's own vLLM client (TRL 0.29 and later): when weights are sent to the engine."""

from __future__ import annotations

from rlaudit.capture.hooks import Adapter, Attachment, Target

from .trl_state import SYNCS

ADAPTER = Adapter(
    name="TRL weight sync",
    kind="framework",
    distribution="trl",
    versions=">=0.29",
    module="trl.generation.vllm_generation",
    targets=(Target("VLLMGeneration.sync_weights"),),
    records="weight synchronisations",
)


def attach(attachment: Attachment) -> None:
    """Observe weight synchronisation."""
    attachment.observe("VLLMGeneration.sync_weights", after=lambda token, result, call: SYNCS.sent())
