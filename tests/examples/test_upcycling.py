"""Sparse upcycling: an MoE of equal experts is the dense model; disturbed experts make routing matter."""

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the examples need torch: pip install '.[trl]'")
pytest.importorskip("transformers", minversion="5", reason="the example copies into the expert tensors of transformers 5")


@pytest.fixture
def dense() -> Any:
    """A small random Llama with SmolLM2's traits: grouped-query attention, tied embeddings, no biases."""
    from transformers import LlamaConfig, LlamaForCausalLM, set_seed

    set_seed(0)
    config = LlamaConfig(
        vocab_size=97, hidden_size=36, intermediate_size=48, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2,
        head_dim=6, tie_word_embeddings=True, initializer_range=0.3, bos_token_id=1, eos_token_id=2, pad_token_id=2,
        rope_parameters={"rope_type": "default", "rope_theta": 100_000.0},
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def logits_of(model: Any) -> Any:
    """Logits (2, 20, 97) of one fixed batch."""
    tokens = torch.randint(3, 97, (2, 20), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return model(tokens).logits


def test_equal_experts_compute_what_the_dense_model_computes(dense: Any) -> None:
    from upcycle_moe import upcycle

    moe = upcycle(dense, experts=4, top_k=2, disturbance=0.0, router_std=0.4)
    # The two experts' outputs are equal and their weights sum to 1, so only the rounding of w1*y + w2*y differs from y.
    torch.testing.assert_close(logits_of(moe.eval()), logits_of(dense), rtol=1e-4, atol=1e-4)


def test_disturbed_experts_change_the_output(dense: Any) -> None:
    from upcycle_moe import upcycle

    moe = upcycle(dense, experts=4, top_k=2, disturbance=0.05, router_std=0.4)
    assert (logits_of(moe.eval()) - logits_of(dense)).abs().max() > 1e-2


def test_the_router_uses_every_expert(dense: Any) -> None:
    from upcycle_moe import upcycle

    moe = upcycle(dense, experts=4, top_k=2, router_std=0.4).eval()
    chosen: list[Any] = []
    hooks = [layer.mlp.gate.register_forward_hook(lambda _module, _inputs, output: chosen.append(output[2])) for layer in moe.model.layers]
    logits_of(moe)
    for hook in hooks:
        hook.remove()
    assert [len(set(layer.flatten().tolist())) for layer in chosen] == [4, 4, 4]


def test_the_moe_keeps_the_dense_model_s_dtype(dense: Any) -> None:
    from upcycle_moe import upcycle

    assert {parameter.dtype for parameter in upcycle(dense.to(torch.bfloat16)).parameters()} == {torch.bfloat16}


def test_a_model_with_biases_is_refused_because_mixtral_has_none() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM
    from upcycle_moe import upcycle

    biased = LlamaForCausalLM(
        LlamaConfig(vocab_size=11, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, attention_bias=True)
    )
    with pytest.raises(ValueError, match="no biases"):
        upcycle(biased)
