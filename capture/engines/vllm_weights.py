"""Adapter for the loader that every model of vLLM's own ends in: weights that a framework loads directly (TRL, verl).

Read: vLLM 0.30.0, ``vllm.model_executor.models.utils.AutoWeightsLoader.load_weights``.
"""

from __future__ import annotations

from rlaudit.capture.hooks import Adapter, Attachment, Target

from .vllm_engines import SYNCS

ADAPTER = Adapter(
    name="vLLM weights",
    kind="engine",
    distribution="vllm",
    versions=">=0.24",
    module="vllm.model_executor.models.utils",
    targets=(Target("AutoWeightsLoader.load_weights", ("weights",)),),
    records="weight synchronisations",
)


def attach(attachment: Attachment) -> None:
    """Observe weights being loaded into a model."""
    attachment.observe("AutoWeightsLoader.load_weights", after=lambda token, result, call: SYNCS.received())
