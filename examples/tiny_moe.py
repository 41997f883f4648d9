"""Makes a tiny Qwen3-MoE with random weights, and a tokenizer for it, on this machine alone: nothing is downloaded.

python examples/tiny_moe.py FOLDER
"""

from __future__ import annotations

import argparse

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3MoeConfig, Qwen3MoeForCausalLM, set_seed

VOCABULARY = 512
END_OF_TEXT, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CORPUS = (
    "The quick brown fox jumps over the lazy dog, and the dog sleeps on in the warm afternoon sun.",
    "Reinforcement learning improves a policy by trial: it samples answers, scores them and makes the better ones likelier.",
    "One program samples the tokens and another computes their probabilities again before the weights change.",
    "A mixture of experts sends every token to a few small networks, which a router picks layer by layer.",
    "Numbers with eight bits of mantissa round early; a sum taken in another order ends in another last digit.",
    "Which words come next? Write a short answer, say why it holds, and stop when you are done.",
    "user assistant system question answer reward advantage sequence position layer expert token",
    "What is 2 + 2? It is 4. What is 3 + 5? It is 8. What is 17 - 9? It is 8. What is 6 * 7? It is 42.",
)


def make_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer with a ChatML template, trained on a few sentences; no text is unknown to it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END_OF_TEXT, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS * 4, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=END_OF_TEXT, eos_token=END, model_max_length=512)
    fast.chat_template = CHAT_TEMPLATE
    return fast


def make_model(tokenizer: PreTrainedTokenizerFast, seed: int = 0) -> Qwen3MoeForCausalLM:
    """A Qwen3-MoE of 314,000 float32 parameters: 4 layers, 8 experts, 2 of them for each token.

    Weights are drawn ten times wider than usual. With the usual width an untrained model gives every token nearly
    the same probability; here some tokens are likely and some are not, as in a trained model.
    """
    set_seed(seed)
    model = Qwen3MoeForCausalLM(
        Qwen3MoeConfig(
            vocab_size=VOCABULARY,
            hidden_size=64,
            intermediate_size=128,
            moe_intermediate_size=32,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
            num_experts=8,
            num_experts_per_tok=2,
            norm_topk_prob=True,
            decoder_sparse_step=1,
            mlp_only_layers=[],
            max_position_embeddings=512,
            tie_word_embeddings=False,
            initializer_range=0.3,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
            bos_token_id=None,
        )
    )
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a tiny random Qwen3-MoE and its tokenizer to a folder.")
    parser.add_argument("folder")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    tokenizer = make_tokenizer()
    model = make_model(tokenizer, arguments.seed)
    tokenizer.save_pretrained(arguments.folder)
    model.save_pretrained(arguments.folder)
    print(f"{arguments.folder}: Qwen3-MoE, {model.num_parameters():,} parameters, {len(tokenizer)} tokens")


if __name__ == "__main__":
    main()
