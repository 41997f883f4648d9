"""Rollout routing replay (R3) for transformers' Qwen3-MoE: the trainer's forward pass uses the experts that the engine chose."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def forced_experts(model: Any, experts_BWLk: torch.Tensor | None) -> Iterator[None]:
    """Force these experts on every router in a ``with`` block; where the first slot is -1, the router's own choice stays.

    Gate weights are computed anew from the router's own logits, so gradients flow to the router. None forces nothing.
    """
    handles = []
    if experts_BWLk is not None:
        for index, layer in enumerate(model.model.layers):
            handles.append(layer.mlp.gate.register_forward_hook(_forcing(experts_BWLk[:, :, index].flatten(0, 1))))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _forcing(wanted_Nk: torch.Tensor) -> Any:
    def hook(router: Any, inputs: Any, output: Any) -> Any:
        logits, _, own = output
        chosen = torch.where(wanted_Nk[:, :1] >= 0, wanted_Nk, own)
        weights = torch.softmax(logits, dim=-1, dtype=torch.float).gather(1, chosen)
        if router.norm_topk_prob:
            weights = weights / weights.sum(-1, keepdim=True)
        return logits, weights.to(logits.dtype), chosen

    return hook
