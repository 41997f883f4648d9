"""Three implementations of expert-set overlap agree with Python's sets: bit tricks, stamps, whole arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlaudit.analyzers import compiled
from rlaudit.analyzers import routing_kernel as rk

Array = np.ndarray[Any, Any]


def by_sets(a: Array, b: Array, num_experts: int) -> tuple[Array, Array]:
    """Layer counts and token flags of (tokens, layers, top_k) ids, by Python's own sets."""
    tokens, layers, top_k = a.shape
    counts, flags = np.zeros((layers, rk.LAYER_COUNTS), np.int64), np.zeros(tokens, np.int8)
    for t in range(tokens):
        seen = set()
        for layer in range(layers):
            x, y = a[t, layer].tolist(), b[t, layer].tolist()
            bad = [len(set(ids)) < top_k or max(ids) >= num_experts for ids in (x, y)]
            counts[layer, rk.INVALID_A] += bad[0]
            counts[layer, rk.INVALID_B] += bad[1]
            if any(bad):
                seen.add(rk.UNKNOWN)
                continue
            shared = len(set(x) & set(y))
            counts[layer, [rk.ROWS, rk.SHARED_EXPERTS, rk.EXPERTS]] += [1, shared, top_k]
            counts[layer, rk.DIFFERING] += shared < top_k
            seen.add(rk.DIFFERS if shared < top_k else rk.SAME)
        flags[t] = next(flag for flag in (rk.DIFFERS, rk.UNKNOWN, rk.SAME) if flag in seen)
    return counts, flags


def run(kernel: Any, a: Array, b: Array, num_experts: int) -> tuple[Array, Array]:
    """A kernel over whole arrays."""
    tokens, layers, top_k = a.shape
    counts, flags = np.zeros((layers, rk.LAYER_COUNTS), np.int64), np.full(tokens, 7, np.int8)
    zero, slots = np.zeros(1, np.int64), np.arange(layers)
    with np.errstate(over="ignore"):  # the uncompiled bit tricks multiply modulo 2⁶⁴
        kernel(a.ravel(), b.ravel(), zero, zero, np.array([tokens]), layers, layers, slots, slots, top_k, num_experts, counts, flags, zero)
    return counts, flags


def ids(rng: np.random.Generator, tokens: int, layers: int, top_k: int, num_experts: int, kind: Any) -> tuple[Array, Array]:
    """Two routings: shuffled slots, some experts exchanged, some rows invalid."""
    a = rng.permuted(np.tile(np.arange(num_experts), (tokens, layers, 1)), axis=2)[..., :top_k]
    b = rng.permuted(a, axis=2)
    moved = rng.random(a.shape) < 0.1
    b[moved] = rng.integers(0, num_experts, moved.sum())  # sometimes twice in a row: invalid
    if num_experts < np.iinfo(kind).max:
        b[rng.random(a.shape) < 0.02] = num_experts  # out of range
    return a.astype(kind), b.astype(kind)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 8), st.integers(8, 256), st.integers(0, 2**32 - 1))
def test_bit_tricks_on_bytes_equal_sets(top_k: int, num_experts: int, seed: int) -> None:
    a, b = ids(np.random.default_rng(seed), 12, 3, top_k, num_experts, np.uint8)
    expected = by_sets(a, b, num_experts)
    for kernel in (rk.overlap_bytes, rk.overlap_any, rk.overlap_vectorised):
        for ours, theirs in zip(run(kernel, a, b, num_experts), expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 20), st.sampled_from([40, 257, 1000, 65_535]), st.integers(0, 2**32 - 1))
def test_any_top_k_and_two_byte_ids_equal_sets(top_k: int, num_experts: int, seed: int) -> None:
    a, b = ids(np.random.default_rng(seed), 6, 2, top_k, num_experts, np.uint16)
    expected = by_sets(a, b, num_experts)
    for kernel in (rk.overlap_any, rk.overlap_vectorised):
        for ours, theirs in zip(run(kernel, a, b, num_experts), expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("top_k", [1, 2, 4, 6, 8])
def test_compiled_kernels_equal_sets(top_k: int) -> None:
    kernels = compiled.kernels()
    a, b = ids(np.random.default_rng(top_k), 200, 4, top_k, 64, np.uint8)
    expected = by_sets(a, b, 64)
    wide = by_sets(*(each.astype(np.uint16) for each in (a, b)), 64)
    for kernel in (kernels.overlap_bytes, kernels.overlap_any):
        for ours, theirs in zip(run(kernel, a, b, 64), expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)
    for ours, theirs in zip(run(kernels.overlap_any, a.astype(np.uint16), b.astype(np.uint16), 64), wide, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_once_compiled_nothing_needs_compiling() -> None:
    compiled.kernels()
    assert compiled.kernels_cached()


def test_slot_order_is_no_disagreement() -> None:
    a = np.array([[[3, 1, 2]]], np.uint8)
    counts, flags = run(rk.overlap_bytes, a, a[..., ::-1].copy(), 4)
    assert (counts[0, rk.DIFFERING], flags[0]) == (0, rk.SAME)


def test_expert_255_is_an_expert_and_no_padding() -> None:
    counts, _ = run(rk.overlap_bytes, np.array([[[255, 0]]], np.uint8), np.array([[[255, 1]]], np.uint8), 256)
    assert counts[0, rk.SHARED_EXPERTS] == 1
