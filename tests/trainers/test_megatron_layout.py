"""Hugging Face's and Megatron's layouts of Qwen3-MoE: there and back, and planted permutations by their names."""

from __future__ import annotations

from typing import Any

import pytest

from rlaudit.capture.trainers.megatron_layout import Heads, checkpoint_names, compare_layouts, to_hugging_face, to_megatron
from tests.adapters.moe_families import tiny_model

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
HEADS = Heads(queries=4, groups=2, channels=8)
LAYER = "decoder.layers.0."
QKV = LAYER + "self_attention.linear_qkv.weight"


@pytest.fixture(scope="module")
def source() -> dict[str, Any]:
    return {name: tensor.detach() for name, tensor in tiny_model("qwen3_moe").state_dict().items()}


def verdicts(source: dict[str, Any], megatron: dict[str, Any]) -> dict[str, tuple[str, str | None]]:
    """What is not equal."""
    found = compare_layouts(source, megatron, HEADS)
    assert {match.name for match in found} >= set(megatron)
    return {match.name: (match.verdict, match.note) for match in found if match.verdict != "equal"}


def test_there_and_back_is_bit_for_bit_the_same(source: dict[str, Any]) -> None:
    back, checkpoint = to_hugging_face(to_megatron(source, HEADS), HEADS), checkpoint_names(source)
    assert back.keys() == checkpoint.keys()
    assert all(torch.equal(back[name], checkpoint[name]) for name in back)


def test_fused_rows_are_each_groups_queries_key_and_value(source: dict[str, Any]) -> None:
    """Rows as megatron-core's own comment has them: q1 q2 k1 v1 | q3 q4 k2 v2."""
    q, k, v = (source[f"model.layers.0.self_attn.{which}_proj.weight"] for which in "qkv")
    assert torch.equal(to_megatron(source, HEADS)[QKV], torch.cat([q[:16], k[:8], v[:8], q[16:], k[8:], v[8:]]))


def test_the_right_layout_is_equal_everywhere_under_transformer_engines_names_and_padded_vocabulary_too(source: dict[str, Any]) -> None:
    right = to_megatron(source, HEADS)
    assert verdicts(source, right) == {}
    renamed = {}
    for name, tensor in right.items():
        other = name.replace("input_layernorm.weight", "self_attention.linear_qkv.layer_norm_weight")
        if "local_experts" in other:
            expert, which = other.split("local_experts.")[1].split(".")[:2]
            other = other.split("local_experts.")[0] + f"{which}.weight{expert}"
        renamed[other] = torch.cat([tensor, torch.zeros(32, tensor.shape[1])]) if name.startswith(("embedding", "output_layer")) else tensor
    assert all(match.verdict == "equal" for match in compare_layouts(source, renamed, HEADS))


def plant(right: dict[str, Any], name: str) -> tuple[dict[str, Any], str]:
    wrong = dict(right)
    one, two = (LAYER + f"mlp.experts.local_experts.{e}.linear_fc1.weight" for e in (1, 2))
    q = [right[QKV][a : a + 16] for a in (0, 32)]
    k, v = ([right[QKV][a : a + 8] for a in (first, first + 32)] for first in (16, 24))
    if name == "qkv":
        wrong[QKV] = torch.cat([*q, *k, *v])
    elif name == "kv":
        wrong[QKV] = torch.cat([q[0], v[0], k[0], q[1], v[1], k[1]])
    elif name == "gate":
        wrong[one] = torch.cat([right[one][24:], right[one][:24]])
    elif name == "experts":
        wrong[one] = right[two]
    elif name == "transposed":
        wrong[LAYER + "self_attention.linear_proj.weight"] = right[LAYER + "self_attention.linear_proj.weight"].t().contiguous()
    elif name == "router":
        wrong[LAYER + "mlp.router.weight"] = right[LAYER + "mlp.router.weight"][[1, 0, *range(2, 8)]]
    elif name == "layer":
        wrong[LAYER + "self_attention.linear_proj.weight"] = right["decoder.layers.2.self_attention.linear_proj.weight"]
    changed = [n for n in wrong if wrong[n] is not right[n]]
    assert len(changed) == 1
    return wrong, changed[0]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("qkv", "one behind the other"),
        ("kv", "keys and values are exchanged"),
        ("gate", "gate and up are exchanged"),
        ("experts", "expert 2 of Hugging Face's, not 1"),
        ("transposed", "transposed"),
        ("router", "rows are all there, in another order"),
        ("layer", "layer 2 of Hugging Face's, not 0"),
    ],
)
def test_a_planted_permutation_is_named_and_nothing_else_is(source: dict[str, Any], name: str, words: str) -> None:
    wrong, changed = plant(to_megatron(source, HEADS), name)
    (found,) = verdicts(source, wrong).items()
    assert found[0] == changed
    assert found[1][0] == "permuted"
    assert words in str(found[1][1])


def test_other_values_are_different_and_absent_tensors_missing(source: dict[str, Any]) -> None:
    wrong = to_megatron(source, HEADS)
    wrong["decoder.final_layernorm.weight"] = wrong["decoder.final_layernorm.weight"] + 0.5
    del wrong[QKV]
    found = {m.name: m for m in compare_layouts(source, wrong, HEADS) if m.verdict != "equal"}
    assert found["decoder.final_layernorm.weight"].verdict == "different"
    assert "0.5" in str(found["decoder.final_layernorm.weight"].note)
    assert found[QKV].verdict == "missing"
    assert len(found) == 2
