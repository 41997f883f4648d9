"""A tiny random mixture of experts with a tokenizer, saved in a folder; knows nothing of rlaudit."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch

QUESTIONS = ("What is 2 + 2?", "What is 3 + 5, then?", "Tell me about experts.", "What does it do?")


def save_tiny_model(folder: Path, **overrides: Any) -> Path:
    """A random Qwen3-MoE (4 layers, the first dense) with a byte-level tokenizer whose chat template is ChatML."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3MoeConfig, Qwen3MoeForCausalLM

    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    vocabulary = {token: index for index, token in enumerate([*specials, *sorted(pre_tokenizers.ByteLevel.alphabet())])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=specials[0],
        eos_token=specials[2],
        additional_special_tokens=specials[1:2],
        model_input_names=["input_ids", "attention_mask"],
    )
    fast.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}"
        "{% for call in m.tool_calls or [] %}<call>{{ call.function.name }} {{ call.function.arguments | tojson }}{% endfor %}"
        "<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    fast.save_pretrained(folder)
    settings = {
        "vocab_size": len(fast),
        "hidden_size": 32,
        "intermediate_size": 64,
        "moe_intermediate_size": 24,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "mlp_only_layers": [0],
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
        "initializer_range": 0.4,
        "pad_token_id": fast.pad_token_id,
        "eos_token_id": fast.eos_token_id,
        "bos_token_id": None,
    }
    torch.manual_seed(0)
    model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**settings | overrides))
    model.save_pretrained(folder)
    return folder


def weights_digest(model: Any) -> str:
    """SHA-256 over the names and bits of all parameters."""
    digest = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        digest.update(name.encode())
        digest.update(parameter.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
