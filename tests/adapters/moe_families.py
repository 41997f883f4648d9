"""Tiny random models of several mixture-of-experts families, made with transformers' own classes."""

from __future__ import annotations

from typing import Any

COMMON = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 95,
    "initializer_range": 0.3,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3_moe": {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "head_dim": 8, "mlp_only_layers": [1]},
    "mixtral": {"num_local_experts": 6, "num_experts_per_tok": 2},
    "olmoe": {"num_experts": 8, "num_experts_per_tok": 3, "num_key_value_heads": 4},
    "deepseek_v3": {
        "n_routed_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 24,
        "n_group": 2,
        "topk_group": 1,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 8,
        "num_key_value_heads": 4,
    },
    "gpt_oss": {"num_local_experts": 8, "num_experts_per_tok": 2, "head_dim": 8, "sliding_window": 16},
}
ROUTED_LAYERS = {"qwen3_moe": (0, 2), "mixtral": (0, 1, 2), "olmoe": (0, 1, 2), "deepseek_v3": (1, 2), "gpt_oss": (0, 1, 2)}
"""Absolute layers that have a router: qwen3_moe's layer 1 is declared dense, deepseek_v3's first layer is."""


def tiny_model(family: str, **overrides: Any) -> Any:
    """A model with random weights from a fixed seed; peaked distributions, so that routing is not a coin toss."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.set_num_threads(1)
    with torch.random.fork_rng():
        torch.manual_seed(7)
        settings = COMMON | FAMILIES.get(family, {}) | overrides
        return AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **settings))


def left_padded(lengths: tuple[int, ...] = (9, 5, 7)) -> tuple[Any, Any]:
    """Token ids (B, W) and mask of prompts of these lengths, padded on the left as generation needs them."""
    import torch

    generator = torch.Generator().manual_seed(3)
    width = max(lengths)
    ids = torch.randint(2, 90, (len(lengths), width), generator=generator)
    mask = torch.tensor([[0] * (width - length) + [1] * length for length in lengths])
    return ids * mask, mask
