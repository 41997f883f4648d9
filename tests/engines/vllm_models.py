"""Make two tiny models with random weights, and a tokenizer: a Qwen3-MoE (1.98 M parameters) and a dense Qwen3. Argument: folder."""

import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

folder = Path(sys.argv[1])
bpe = Tokenizer(models.BPE())
bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
bpe.decoder = decoders.ByteLevel()
trainer = trainers.BpeTrainer(
    vocab_size=768,
    show_progress=False,
    special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
    initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
)
lines = [f"the quick brown fox jumps over the lazy dog {i} times" for i in range(200)] + [f"def f(x): return x + {i}" for i in range(200)]
bpe.train_from_iterator(lines, trainer)
tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|im_end|>", pad_token="<|endoftext|>")
common = {
    "vocab_size": 768,
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": False,
    "rope_theta": 10000.0,
    "bos_token_id": None,
    "eos_token_id": tokenizer.eos_token_id,
    "pad_token_id": tokenizer.pad_token_id,
    "initializer_range": 0.08,
    "intermediate_size": 256,
}
torch.manual_seed(0)
routed = {"moe_intermediate_size": 64, "num_experts": 16, "num_experts_per_tok": 4, "norm_topk_prob": True}
moe = Qwen3MoeForCausalLM(Qwen3MoeConfig(**common, **routed, decoder_sparse_step=1, mlp_only_layers=[]))
torch.manual_seed(1)
dense = Qwen3ForCausalLM(Qwen3Config(**common))
for name, model in (("moe", moe), ("dense", dense)):
    model.to(torch.bfloat16).save_pretrained(folder / name)
    tokenizer.save_pretrained(folder / name)
