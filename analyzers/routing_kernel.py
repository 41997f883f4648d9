"""The routing pass's inner loops: exact overlap of the expert sets that two evaluations chose for the same token and layer.

A row is one token in one layer: ``top_k`` expert ids, in any order. A row with an id outside the router's range, or with an
id twice, is *invalid* on the side where it is: it is counted and compared with nothing.

Plain Python that numba compiles (``rlaudit.analyzers.compiled``).
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any

# Columns of the per-layer counts.
ROWS, DIFFERING, SHARED_EXPERTS, EXPERTS, INVALID_A, INVALID_B = 0, 1, 2, 3, 4, 5
LAYER_COUNTS = 6

# A token's flag.
SAME, DIFFERS, UNKNOWN = 0, 1, -1

LOW = np.uint64(0x7F7F7F7F7F7F7F7F)
ONES = np.uint64(0x0101010101010101)
SEVEN, EIGHT, FIFTY_SIX, SIXTY_FOUR = np.uint64(7), np.uint64(8), np.uint64(56), np.uint64(64)


def zero_bytes(word: Any) -> Any:
    """Bit 7 of every byte of ``word`` that is zero (exact for every byte, unlike the shorter classic)."""
    return ~((((word & LOW) + LOW) | word) | LOW)


def load(ids: Array, start: int, top_k: int) -> Any:
    """``top_k`` <= 8 one-byte ids as one word, first id lowest; unused bytes repeat the first id."""
    word = np.uint64(0)
    for k in range(8):
        word |= np.uint64(ids[start + (k if k < top_k else 0)]) << (EIGHT * np.uint64(k))
    return word


def has_duplicate(word: Any, top_k: int) -> bool:
    """True where two of the first ``top_k`` bytes of ``word`` are equal."""
    for shift in range(1, top_k):
        live = np.uint64(8 * (top_k - shift))
        mask = ~np.uint64(0) if live == SIXTY_FOUR else (np.uint64(1) << live) - np.uint64(1)
        if zero_bytes(word ^ (word >> (EIGHT * np.uint64(shift)))) & mask:
            return True
    return False


def common(x: Any, y: Any, top_k: int) -> int:
    """How many of the first ``top_k`` bytes of x occur in y (both without duplicates, loaded by ``load``)."""
    found = zero_bytes(x ^ y)
    for shift in range(1, 8):
        bits = EIGHT * np.uint64(shift)
        found |= zero_bytes(x ^ ((y >> bits) | (y << (SIXTY_FOUR - bits))))
    live = np.uint64(8 * top_k)
    if live != SIXTY_FOUR:
        found &= (np.uint64(1) << live) - np.uint64(1)
    return int(((found >> SEVEN) * ONES) >> FIFTY_SIX)


def overlap_bytes(
    a: Array,
    b: Array,
    a_start: Array,
    b_start: Array,
    tokens: Array,
    a_layers: int,
    b_layers: int,
    a_slot: Array,
    b_slot: Array,
    top_k: int,
    num_experts: int,
    layer_counts: Array,
    flags: Array,
    flag_start: Array,
) -> None:
    """Overlap of one-byte ids with top_k <= 8, eight ids at a time (SIMD within a register).

    Pair i compares tokens[i] token rows from byte a_start[i] of ``a`` and b_start[i] of ``b``. A token row holds a_layers
    (b_layers) layers of
    top_k ids; compared layer l is layer a_slot[l] of ``a`` and b_slot[l] of ``b``. Adds to layer_counts (layers, LAYER_COUNTS) and
    sets flags[flag_start[i] + t] (int8) to SAME, DIFFERS (some layer differs) or UNKNOWN (no layer differs, some are invalid).
    """
    limit = np.uint64(num_experts)
    byte = np.uint64(0xFF)
    for i in range(tokens.shape[0]):
        for t in range(tokens[i]):
            flag = SAME
            for layer in range(a_slot.shape[0]):
                x = load(a, a_start[i] + (t * a_layers + a_slot[layer]) * top_k, top_k)
                y = load(b, b_start[i] + (t * b_layers + b_slot[layer]) * top_k, top_k)
                bad_a = has_duplicate(x, top_k)
                bad_b = bad_a if x == y else has_duplicate(y, top_k)
                if num_experts < 256:
                    for k in range(top_k):
                        bits = EIGHT * np.uint64(k)
                        bad_a |= ((x >> bits) & byte) >= limit
                        bad_b |= ((y >> bits) & byte) >= limit
                flag = count_row(layer_counts[layer], flag, bad_a, bad_b, top_k if x == y else common(x, y, top_k), top_k)
            flags[flag_start[i] + t] = flag


def count_row(counts: Array, flag: int, bad_a: bool, bad_b: bool, shared: int, top_k: int) -> int:
    """Count one row and return the token's flag with it taken in. ``shared`` is ignored where a side is bad."""
    counts[INVALID_A] += bad_a
    counts[INVALID_B] += bad_b
    if bad_a or bad_b:
        return flag if flag == DIFFERS else UNKNOWN
    counts[ROWS] += 1
    counts[SHARED_EXPERTS] += shared
    counts[EXPERTS] += top_k
    if shared < top_k:
        counts[DIFFERING] += 1
        return DIFFERS
    return flag


def overlap_any(
    a: Array,
    b: Array,
    a_start: Array,
    b_start: Array,
    tokens: Array,
    a_layers: int,
    b_layers: int,
    a_slot: Array,
    b_slot: Array,
    top_k: int,
    num_experts: int,
    layer_counts: Array,
    flags: Array,
    flag_start: Array,
) -> None:
    """As ``overlap_bytes`` for any top_k and for ids of one or two bytes (uint8 or uint16; starts count ids)."""
    stamp_a = np.zeros(num_experts, np.int64)  # the last row of a that chose this expert
    stamp_b = np.zeros(num_experts, np.int64)
    row = np.int64(0)
    for i in range(tokens.shape[0]):
        for t in range(tokens[i]):
            flag = SAME
            for layer in range(a_slot.shape[0]):
                row += 1
                first_a = a_start[i] + (t * a_layers + a_slot[layer]) * top_k
                first_b = b_start[i] + (t * b_layers + b_slot[layer]) * top_k
                bad_a = bad_b = False
                shared = 0
                for k in range(top_k):
                    expert = np.int64(a[first_a + k])
                    if expert >= num_experts or stamp_a[expert] == row:
                        bad_a = True
                    else:
                        stamp_a[expert] = row
                for k in range(top_k):
                    expert = np.int64(b[first_b + k])
                    if expert >= num_experts or stamp_b[expert] == row:
                        bad_b = True
                    else:
                        stamp_b[expert] = row
                        shared += stamp_a[expert] == row
                flag = count_row(layer_counts[layer], flag, bad_a, bad_b, shared, top_k)
            flags[flag_start[i] + t] = flag


def overlap_vectorised(
    a: Array,
    b: Array,
    a_start: Array,
    b_start: Array,
    tokens: Array,
    a_layers: int,
    b_layers: int,
    a_slot: Array,
    b_slot: Array,
    top_k: int,
    num_experts: int,
    layer_counts: Array,
    flags: Array,
    flag_start: Array,
) -> None:
    """As ``overlap_any`` in whole-array operations: quick without compiling, for small runs, and the reference for the kernels."""
    for i in range(tokens.shape[0]):
        x = a[a_start[i] :][: tokens[i] * a_layers * top_k].reshape(tokens[i], a_layers, top_k)[:, a_slot]
        y = b[b_start[i] :][: tokens[i] * b_layers * top_k].reshape(tokens[i], b_layers, top_k)[:, b_slot]
        bad_a, bad_b = _invalid(x, num_experts), _invalid(y, num_experts)
        usable = ~(bad_a | bad_b)
        shared = (x[..., :, None] == y[..., None, :]).any(-1).sum(-1)
        differs = usable & (shared < top_k)
        for column, cells in (
            (ROWS, usable),
            (DIFFERING, differs),
            (SHARED_EXPERTS, shared * usable),
            (EXPERTS, top_k * usable),
            (INVALID_A, bad_a),
            (INVALID_B, bad_b),
        ):
            layer_counts[:, column] += cells.sum(0)
        flags[flag_start[i] :][: tokens[i]] = np.where(differs.any(1), DIFFERS, np.where(usable.all(1), SAME, UNKNOWN))


def _invalid(ids: Array, num_experts: int) -> Array:
    """True for rows (last axis) with an id out of range or twice."""
    ordered = np.sort(ids, axis=-1)
    return (ids >= num_experts).any(-1) | (ordered[..., 1:] == ordered[..., :-1]).any(-1)
