"""Which layers of a model route, read from its Hugging Face configuration: engines return rows for all layers, dense ones too.

Read: transformers 5.24.0, the decoder layers of Qwen2/3-MoE (``mlp_only_layers``, ``decoder_sparse_step``), DeepSeek-V2/V3 and GLM-4-MoE
(``first_k_dense_replace``, ``moe_layer_freq``), Llama 4 (``moe_layers``), Mixtral, OLMoE and gpt-oss (all layers).
"""

from __future__ import annotations

from typing import Any, NamedTuple

_COUNTS = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")


class Routed(NamedTuple):
    """num_experts: experts that a router chooses from. layer_ids: absolute MoE layers. layers: decoder layers in all."""

    num_experts: int
    layer_ids: tuple[int, ...]
    layers: int


def routed_layers(config: Any) -> Routed | None:
    """The MoE layers of a text model's configuration; None for a dense model. ValueError for a layout that is not known."""
    counts = [value for name in _COUNTS if isinstance(value := getattr(config, name, None), int) and value > 0]
    if not counts:
        return None
    layers = int(config.num_hidden_layers)
    return Routed(counts[0], tuple(layer for layer in range(layers) if _routes(config, layer)), layers)


def _routes(config: Any, layer: int) -> bool:
    listed = getattr(config, "moe_layers", None)
    if isinstance(listed, (list, tuple)):
        return layer in listed
    if getattr(config, "moe_layer_start_index", None) is not None:  # ERNIE 4.5
        raise ValueError("layers chosen by moe_layer_start_index are not read")
    step = getattr(config, "decoder_sparse_step", None)
    if step is not None:
        return layer not in (getattr(config, "mlp_only_layers", None) or ()) and (layer + 1) % int(step) == 0
    first = getattr(config, "first_k_dense_replace", None)
    frequency = getattr(config, "moe_layer_freq", None)
    if isinstance(frequency, (list, tuple)):
        return bool(frequency[layer])
    return layer >= int(first or 0) and layer % int(frequency or 1) == 0
