"""Makes a mixture of experts from a dense model by sparse upcycling, so that routing happens on real text.

Every MLP is copied into N experts behind a router (Komatsuzaki et al. 2023, "Sparse Upcycling"). As long as the copies are
equal, the MoE computes what the dense model computes, whatever the router picks: its weights for the chosen experts sum to 1.
Each copy is then disturbed a little, so that it matters which experts a token visits.

python examples/upcycle_moe.py FOLDER --experts 4
"""

from __future__ import annotations

import argparse

import torch
from smollm2 import load_smollm2
from transformers import LlamaForCausalLM, MixtralConfig, MixtralForCausalLM, set_seed


def moe_config(dense: LlamaForCausalLM, experts: int, top_k: int) -> MixtralConfig:
    """Mixtral's configuration with the dense model's sizes: Mixtral's attention, norms and embeddings are Llama's."""
    shared = (
        "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
        "hidden_act", "max_position_embeddings", "rms_norm_eps", "rope_parameters", "tie_word_embeddings",
        "bos_token_id", "eos_token_id", "pad_token_id",
    )  # fmt: skip
    sizes = {name: getattr(dense.config, name) for name in shared}
    return MixtralConfig(**sizes, num_local_experts=experts, num_experts_per_tok=top_k, sliding_window=None)


def upcycle(
    dense: LlamaForCausalLM, *, experts: int = 4, top_k: int = 2, disturbance: float = 0.05, router_std: float = 0.4, seed: int = 0
) -> MixtralForCausalLM:
    """A Mixtral-shaped MoE made from ``dense``, in its dtype.

    disturbance: standard deviation of the noise added to each expert's weights, relative to that of the weight matrix;
    0 leaves every expert an exact copy. router_std: standard deviation of the router's random weights; 0.4 gives router logits
    of about unit spread on SmolLM2, whose normed hidden states are small.
    """
    if dense.config.attention_bias or dense.config.mlp_bias:
        raise ValueError("Mixtral's layers have no biases, so a model with attention_bias or mlp_bias can't be copied into it")
    set_seed(seed)
    moe = MixtralForCausalLM(moe_config(dense, experts, top_k)).to(dense.dtype)
    rest = {name: tensor for name, tensor in dense.state_dict().items() if ".mlp." not in name}
    missing, unexpected = moe.load_state_dict(rest, strict=False)
    left_out = [name for name in missing if ".mlp." not in name]
    if unexpected or left_out:
        raise RuntimeError(f"this transformers release names Mixtral's weights differently: unexpected {unexpected}, missing {left_out}")
    with torch.no_grad():
        for source, target in zip(dense.model.layers, moe.model.layers, strict=True):
            gate_up = torch.cat([source.mlp.gate_proj.weight, source.mlp.up_proj.weight])
            target.mlp.gate.weight.normal_(std=router_std)
            for expert in range(experts):
                target.mlp.experts.gate_up_proj[expert] = _disturbed(gate_up, disturbance)
                target.mlp.experts.down_proj[expert] = _disturbed(source.mlp.down_proj.weight, disturbance)
    moe.generation_config = dense.generation_config
    return moe


def _disturbed(weight: torch.Tensor, disturbance: float) -> torch.Tensor:
    """A copy of ``weight`` with Gaussian noise of ``disturbance`` times its standard deviation."""
    return weight + disturbance * weight.std() * torch.randn_like(weight)


def main() -> None:
    parser = argparse.ArgumentParser(description="Write an MoE made from SmolLM2-135M by sparse upcycling to a folder.")
    parser.add_argument("folder")
    parser.add_argument("--experts", type=int, default=4)
    parser.add_argument("--top-k", type=int, default=2, help="experts that a token visits (default: 2)")
    parser.add_argument("--disturbance", type=float, default=0.05, help="noise on each expert's weights, relative (default: 0.05)")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    dense, tokenizer = load_smollm2()
    moe = upcycle(dense, experts=arguments.experts, top_k=arguments.top_k, disturbance=arguments.disturbance, seed=arguments.seed)
    tokenizer.save_pretrained(arguments.folder)
    moe.save_pretrained(arguments.folder)
    print(f"{arguments.folder}: {arguments.experts} experts, {arguments.top_k} for each token, {moe.num_parameters():,} parameters")


if __name__ == "__main__":
    main()
