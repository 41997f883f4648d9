"""Qwen3-MoE weights in Hugging Face's layout and in Megatron-Core's: conversion both ways, and a check that names what is permuted.

Written after reading megatron-core 0.16.1 (``SelfAttention.get_query_key_value_tensors``: fused rows are, query group by query group,
its queries, its key, its value; ``MLP`` with gated units: gate before up; local and Transformer Engine layer specs) and transformers 5.24
(``modeling_qwen3_moe``). Hugging Face names are those of checkpoints; fused experts of a model in memory are split first. Whole tensors:
gather tensor-, expert- and pipeline-parallel shards before.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from rlaudit.capture.models.host import torch


class Heads(NamedTuple):
    """Attention of the model: query heads, query groups (key-value heads), and channels of a head."""

    queries: int
    groups: int
    channels: int


class TensorMatch(NamedTuple):
    """One Megatron tensor against Hugging Face's. verdict: equal, permuted, different or missing; note: what is wrong, None where equal."""

    name: str
    verdict: str
    note: str | None


_PLAIN = {
    "input_layernorm.weight": "input_layernorm.weight",
    "self_attention.linear_proj.weight": "self_attn.o_proj.weight",
    "self_attention.q_layernorm.weight": "self_attn.q_norm.weight",
    "self_attention.k_layernorm.weight": "self_attn.k_norm.weight",
    "pre_mlp_layernorm.weight": "post_attention_layernorm.weight",
    "mlp.router.weight": "mlp.gate.weight",
}
_WHOLE = {
    "embedding.word_embeddings.weight": "model.embed_tokens.weight",
    "decoder.final_layernorm.weight": "model.norm.weight",
    "output_layer.weight": "lm_head.weight",
}
_SAME = ((r"self_attention\.linear_qkv\.layer_norm_weight$", "input_layernorm.weight"),
         (r"mlp\.experts\.linear_fc([12])\.weight(\d+)$", r"mlp.experts.local_experts.\2.linear_fc\1.weight"))  # fmt: skip
"""Names of Transformer Engine's layers to those of the local ones."""


def checkpoint_names(hugging_face: Mapping[str, Any]) -> dict[str, Any]:
    """The weights under checkpoint names: experts that transformers 5 holds fused, (E, 2I, H) and (E, H, I), one by one."""
    found = {}
    for name, tensor in hugging_face.items():
        prefix, _, kind = name.rpartition(".")
        if kind == "gate_up_proj" and prefix.endswith("mlp.experts"):
            for expert, fused in enumerate(tensor):
                found[f"{prefix}.{expert}.gate_proj.weight"], found[f"{prefix}.{expert}.up_proj.weight"] = fused.chunk(2)
        elif kind == "down_proj" and prefix.endswith("mlp.experts"):
            found |= {f"{prefix}.{expert}.down_proj.weight": weight for expert, weight in enumerate(tensor)}
        else:
            found[name] = tensor
    return found


def to_megatron(hugging_face: Mapping[str, Any], heads: Heads) -> dict[str, Any]:
    """Megatron-Core's tensors (names of its local layer spec) of a Hugging Face Qwen3-MoE. KeyError for a weight that is not there."""
    source = checkpoint_names(hugging_face)
    found = {ours: source[theirs] for ours, theirs in _WHOLE.items() if theirs in source}
    if "lm_head.weight" not in source:
        found["output_layer.weight"] = source["model.embed_tokens.weight"]  # tied
    for layer in sorted({int(m[1]) for name in source if (m := re.match(r"model\.layers\.(\d+)\.", name))}):
        ours, theirs = f"decoder.layers.{layer}.", f"model.layers.{layer}."
        found |= {ours + a: source[theirs + b] for a, b in _PLAIN.items() if theirs + b in source}
        q, k, v = (source[f"{theirs}self_attn.{which}_proj.weight"] for which in "qkv")
        found[ours + "self_attention.linear_qkv.weight"] = _fuse(q, k, v, heads)
        experts = {int(m[1]) for name in source if (m := re.match(re.escape(theirs) + r"mlp\.experts\.(\d+)\.", name))}
        pairs = [(f"mlp.experts.local_experts.{e}.", f"mlp.experts.{e}.") for e in sorted(experts)] or [("mlp.", "mlp.")]
        for a, b in pairs:
            found[f"{ours}{a}linear_fc1.weight"] = torch().cat(
                [source[f"{theirs}{b}gate_proj.weight"], source[f"{theirs}{b}up_proj.weight"]]
            )
            found[f"{ours}{a}linear_fc2.weight"] = source[f"{theirs}{b}down_proj.weight"]
    return found


def to_hugging_face(megatron: Mapping[str, Any], heads: Heads) -> dict[str, Any]:
    """The reverse of ``to_megatron``, under checkpoint names. Tensors that Qwen3-MoE has no place for raise ValueError."""
    found: dict[str, Any] = {}
    whole = {theirs: megatron[ours] for ours, theirs in _WHOLE.items() if ours in megatron}
    for name, tensor in local_names(megatron).items():
        if name in _WHOLE:
            continue
        match = re.match(r"decoder\.layers\.(\d+)\.(.+)$", name)
        if match is None:
            raise ValueError(f"Qwen3-MoE has no place for {name}")
        theirs, rest = f"model.layers.{match[1]}.", match[2]
        expert = re.match(r"mlp\.(?:experts\.local_experts\.(\d+)\.)?linear_fc([12])\.weight$", rest)
        if rest in _PLAIN:
            found[theirs + _PLAIN[rest]] = tensor
        elif rest == "self_attention.linear_qkv.weight":
            found |= {f"{theirs}self_attn.{which}_proj.weight": part for which, part in zip("qkv", _split(tensor, heads), strict=True)}
        elif expert is not None:
            place = theirs + ("mlp." if expert[1] is None else f"mlp.experts.{expert[1]}.")
            if expert[2] == "2":
                found[place + "down_proj.weight"] = tensor
            else:
                found[place + "gate_proj.weight"], found[place + "up_proj.weight"] = tensor.chunk(2)
        else:
            raise ValueError(f"Qwen3-MoE has no place for {name}")
    return whole | found


def local_names(megatron: Mapping[str, Any]) -> dict[str, Any]:
    """Megatron tensors under the local layer spec's names; extra states and buffers that are no weights are left out."""
    found = {}
    for name, tensor in megatron.items():
        if "_extra_state" in name or not torch().is_tensor(tensor) or name.endswith(("expert_bias", "tokens_per_expert", "inv_freq")):
            continue
        plain = name
        for pattern, replacement in _SAME:
            plain = re.sub(pattern, replacement, plain)
        found[plain.removeprefix("module.")] = tensor
    return found


def compare_layouts(hugging_face: Mapping[str, Any], megatron: Mapping[str, Any], heads: Heads) -> tuple[TensorMatch, ...]:
    """Every tensor of either side, bit by bit (in Megatron's dtype): is it what the conversion makes of Hugging Face's weights?

    Permuted tensors say how: order of queries, keys and values, gate and up, experts, or rows. Rows that Megatron pads the vocabulary
    with are ignored.
    """
    expected, actual = to_megatron(hugging_face, heads), local_names(megatron)
    return tuple(
        TensorMatch(name, "missing", "Megatron has no such tensor" if name in expected else "Hugging Face has no such tensor")
        if name not in expected or name not in actual
        else _matched(name, expected, actual[name], heads)
        for name in sorted(expected.keys() | actual.keys())
    )


def _matched(name: str, expected: Mapping[str, Any], actual: Any, heads: Heads) -> TensorMatch:
    equal = torch().equal
    wanted = expected[name].detach().to(actual.dtype)
    actual = actual.detach()
    if name in ("embedding.word_embeddings.weight", "output_layer.weight"):
        actual = actual[: wanted.shape[0]]
    if wanted.shape == actual.shape and equal(wanted, actual):
        return TensorMatch(name, "equal", None)
    for note, other in _permutations(name, expected, heads):
        if other.shape == actual.shape and equal(other.detach().to(actual.dtype), actual):
            return TensorMatch(name, "permuted", note)
    if wanted.shape != actual.shape:
        return TensorMatch(name, "different", f"shape {tuple(actual.shape)}, expected {tuple(wanted.shape)}")
    if wanted.dim() == 2 and _sorted_rows(wanted) == _sorted_rows(actual):
        return TensorMatch(name, "permuted", "its rows are all there, in another order")
    largest = float((wanted.float() - actual.float()).abs().max())
    return TensorMatch(name, "different", f"largest difference {largest:.3g}")


def _permutations(name: str, expected: Mapping[str, Any], heads: Heads) -> Iterator[tuple[str, Any]]:
    """Known mistakes for this tensor: what each is called, and what the tensor would be."""
    cat, wanted = torch().cat, expected[name]
    if name.endswith("linear_qkv.weight"):
        q, k, v = _split(wanted, heads)
        yield "queries, keys and values lie one behind the other instead of by query group", cat([q, k, v])
        yield "keys and values are exchanged", _fuse(q, v, k, heads)
        by_group = q.view(heads.groups, -1, heads.channels, q.shape[-1])
        yield "query heads are spread over the groups in turn", _fuse(by_group.transpose(0, 1).reshape(q.shape), k, v, heads)
    if name.endswith("linear_fc1.weight"):
        gate, up = wanted.chunk(2)
        yield "gate and up are exchanged", cat([up, gate])
        yield "gate and up alternate row by row", torch().stack([gate, up], 1).reshape(wanted.shape)
    expert = re.match(r"(.*local_experts\.)(\d+)(\..*)$", name)
    if expert is not None:
        swapped: Callable[[Any], Any] = lambda w: cat(list(reversed(w.chunk(2))))  # noqa: E731
        for other, tensor in expected.items():
            match = re.match(re.escape(expert[1]) + r"(\d+)" + re.escape(expert[3]) + "$", other)
            if match is not None and match[1] != expert[2]:
                yield f"it is expert {match[1]} of Hugging Face's, not {expert[2]}", tensor
                if name.endswith("linear_fc1.weight"):
                    yield f"it is expert {match[1]} of Hugging Face's, not {expert[2]}, with gate and up exchanged", swapped(tensor)
    if wanted.dim() == 2:
        yield "it is transposed", wanted.t()
    layer = re.match(r"decoder\.layers\.(\d+)\.(.+)$", name)
    if layer is not None:
        for other, tensor in expected.items():
            match = re.match(r"decoder\.layers\.(\d+)\." + re.escape(layer[2]) + "$", other)
            if match is not None and match[1] != layer[1]:
                yield f"it is layer {match[1]} of Hugging Face's, not {layer[1]}", tensor


def _fuse(q: Any, k: Any, v: Any, heads: Heads) -> Any:
    """(queries x channels, H), (groups x channels, H) twice -> rows by query group: its queries, its key, its value."""
    by_group = [part.reshape(heads.groups, -1, part.shape[-1]) for part in (q, k, v)]
    return torch().cat(by_group, dim=1).reshape(-1, q.shape[-1])


def _split(qkv: Any, heads: Heads) -> tuple[Any, Any, Any]:
    """The reverse of ``_fuse``."""
    sizes = [heads.queries // heads.groups * heads.channels, heads.channels, heads.channels]
    parts = qkv.reshape(heads.groups, -1, qkv.shape[-1]).split(sizes, dim=1)
    q, k, v = (part.reshape(-1, qkv.shape[-1]) for part in parts)
    return q, k, v


def _sorted_rows(tensor: Any) -> list[bytes]:
    integers = {1: torch().int8, 2: torch().int16, 4: torch().int32, 8: torch().int64}[tensor.element_size()]
    return sorted(row.tobytes() for row in tensor.contiguous().view(integers).cpu().numpy())
