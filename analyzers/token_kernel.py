"""The token pass's inner loops: sufficient statistics of aligned log-probabilities, mergeable and exact.

One row of statistics per compared *span* (a run of response tokens of one sequence that two policy evaluations
both scored). Rows merge by Chan, Golub and LeVeque's pairwise update (1983), so a step, a lag class or a whole run is a merge
of rows, in any grouping. Means and second moments are taken around the span's first value, which bounds the rounding error of
a span of n tokens by about n times the machine epsilon.

The functions here are plain Python that numba compiles (``rlaudit.analyzers.compiled``); numbers are float64
before any exponential. Notation: a = rollout log-probability, b = trainer log-probability, d = b - a, p = exp(a), q = exp(b).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Array = Any
"""A numpy array: float32 and float64 values, int64 indices and counts, uint8 bitmaps (least significant bit first)."""

# Columns of the float statistics. MEAN_/M2_: mean and sum of squared deviations; CO_: sum of products of deviations.
MEAN_P, MEAN_Q, M2_P, M2_Q, CO_PQ = 0, 1, 2, 3, 4
MEAN_A, MEAN_B, M2_A, M2_B, CO_AB = 5, 6, 7, 8, 9
MEAN_ABS, M2_ABS, MAX_ABS = 10, 11, 12
MEAN_DIFF, M2_DIFF, MAX_DIFF = 13, 14, 15
SUM_D, SUM_K3, SUM_W1, SUM_W1_SQUARED = 16, 17, 18, 19
MOMENTS = 20

# Columns of the counts.
N, BEYOND_2, EQUAL_BITS = 0, 1, 2
MISSING_A, MISSING_B, NONFINITE_A, NONFINITE_B = 3, 4, 5, 6
ZERO_A, ZERO_B, BAD_ZERO_A, BAD_ZERO_B = 7, 8, 9, 10
POSITIVE_A, POSITIVE_B, NOT_SAMPLED, ARGMAX = 11, 12, 13, 14
COUNTS = 15

# Columns of the cluster sums (one cluster a span): with s the span's sum of a quantity and n its tokens, sums of s², s·n.
CLUSTERS, NN = 0, 1
W1_W1, W1_N, ABS_ABS, ABS_N, K1_K1, K1_N, K3_K3, K3_N, K1_K3 = 2, 3, 4, 5, 6, 7, 8, 9, 10
CLUSTER_SUMS = 11

LOG_2 = math.log(2.0)
SERIES_BELOW = 1 / 32
"""Below this |d|, exp(d) - 1 - d is its Taylor series to d⁸/8!: relative error below 2e-16, no cancellation, no exponential."""
CERTAIN = math.log(0.999)
"""A log-probability of exactly 0 is believable where the other side says at least this."""
ABOVE_ONE = 1e-3
"""A log-probability above this is no rounding error of a probability of 1."""

LOWEST_EXPONENT, OCTAVES, BINS_PER_OCTAVE = -40, 48, 512
BINS = OCTAVES * BINS_PER_OCTAVE + 1
"""Histogram of non-negative float32: bin 0 is exactly 0, then 512 bins an octave from 2⁻⁴⁰ to 2⁸ (ends take what is beyond)."""
SORT_BELOW = 2048
"""Fewer values than this are sorted; more are narrowed down by histogram first."""


def bit(bitmap: Array, index: int) -> bool:
    """Bit ``index`` of an Arrow bitmap."""
    return (bitmap[index >> 3] >> (index & 7)) & 1 != 0


def measure(
    a: Array, a_valid: Array, a_bit: int, b: Array, b_valid: Array, b_bit: int, mask: Array, mask_bit: int,
    a_start: Array, b_start: Array, mask_start: Array, length: Array,
    moments: Array, counts: Array, abs_out: Array, diff_out: Array,
) -> int:
    """Statistics of spans: span i is a[a_start[i]:][:length[i]] beside b[b_start[i]:][:length[i]].

    a, b: float32 values of Arrow lists. *_valid: their validity bitmaps from bit *_bit (empty: no nulls). mask: bitmap of
    sampled tokens, mask_start[i] = -1 where the policy sampled every token. Nulls, NaN, infinities and tokens not sampled are counted
    and left out of every statistic. Fills moments (spans, MOMENTS) and counts (spans, COUNTS); writes |d| and |q - p| of the
    tokens used, in order, to abs_out and diff_out (float32) and returns how many.
    """
    used = 0
    for i in range(length.shape[0]):
        n = 0
        sa = sb = sp = sq = sx = sy = 0.0  # the first values, which sums are shifted by
        ta = tb = tp = tq = tx = ty = 0.0
        taa = tbb = tab = tpp = tqq = tpq = txx = tyy = 0.0
        total_d = total_k3 = total_w1 = total_w1w1 = 0.0
        largest = -1.0
        largest_diff = 0.0
        for j in range(length[i]):
            if mask_start[i] >= 0 and not bit(mask, mask_bit + mask_start[i] + j):
                counts[i, NOT_SAMPLED] += 1
                continue
            here_a, here_b = a_start[i] + j, b_start[i] + j
            has_a = a_valid.shape[0] == 0 or bit(a_valid, a_bit + here_a)
            has_b = b_valid.shape[0] == 0 or bit(b_valid, b_bit + here_b)
            x = np.float64(a[here_a])
            y = np.float64(b[here_b])
            if not (has_a and has_b) or not (math.isfinite(x) and math.isfinite(y)):
                counts[i, MISSING_A] += not has_a
                counts[i, MISSING_B] += not has_b
                counts[i, NONFINITE_A] += has_a and not math.isfinite(x)
                counts[i, NONFINITE_B] += has_b and not math.isfinite(y)
                continue
            d = y - x
            size = abs(d)
            p = math.exp(x)
            if size < SERIES_BELOW:
                k3 = d * d * (1 / 2 + d * (1 / 6 + d * (1 / 24 + d * (1 / 120 + d * (1 / 720 + d * (1 / 5040 + d * (1 / 40320)))))))
                w1 = d + k3
                q = p + p * w1
                diff = abs(p * w1)
            else:
                w1 = math.expm1(d)
                k3 = w1 - d
                q = math.exp(y)
                diff = abs(q - p)
            if n == 0:
                sa, sb, sp, sq, sx, sy = x, y, p, q, size, diff
            n += 1
            x0, y0, p0, q0, size0, diff0 = x - sa, y - sb, p - sp, q - sq, size - sx, diff - sy
            ta += x0
            tb += y0
            taa += x0 * x0
            tbb += y0 * y0
            tab += x0 * y0
            tp += p0
            tq += q0
            tpp += p0 * p0
            tqq += q0 * q0
            tpq += p0 * q0
            tx += size0
            txx += size0 * size0
            ty += diff0
            tyy += diff0 * diff0
            total_d += d
            total_k3 += k3
            total_w1 += w1
            total_w1w1 += w1 * w1
            if size > largest:
                largest = size
                counts[i, ARGMAX] = j
            largest_diff = max(largest_diff, diff)
            counts[i, BEYOND_2] += size > LOG_2
            counts[i, EQUAL_BITS] += x == y
            if x >= 0.0 or y >= 0.0:
                counts[i, ZERO_A] += x == 0.0
                counts[i, ZERO_B] += y == 0.0
                counts[i, BAD_ZERO_A] += x == 0.0 and y < CERTAIN
                counts[i, BAD_ZERO_B] += y == 0.0 and x < CERTAIN
                counts[i, POSITIVE_A] += x > ABOVE_ONE
                counts[i, POSITIVE_B] += y > ABOVE_ONE
            abs_out[used] = size
            diff_out[used] = diff
            used += 1
        counts[i, N] = n
        if n == 0:
            continue
        row = moments[i]
        row[MEAN_A], row[MEAN_B], row[MEAN_P], row[MEAN_Q] = sa + ta / n, sb + tb / n, sp + tp / n, sq + tq / n
        row[M2_A], row[M2_B], row[CO_AB] = taa - ta * ta / n, tbb - tb * tb / n, tab - ta * tb / n
        row[M2_P], row[M2_Q], row[CO_PQ] = tpp - tp * tp / n, tqq - tq * tq / n, tpq - tp * tq / n
        row[MEAN_ABS], row[M2_ABS], row[MAX_ABS] = sx + tx / n, txx - tx * tx / n, largest
        row[MEAN_DIFF], row[M2_DIFF], row[MAX_DIFF] = sy + ty / n, tyy - ty * ty / n, largest_diff
        row[SUM_D], row[SUM_K3], row[SUM_W1], row[SUM_W1_SQUARED] = total_d, total_k3, total_w1, total_w1w1
    return used


def absorb(moments: Array, counts: Array, more: Array, more_counts: Array) -> None:
    """Merge one row of statistics into another, in place (Chan, Golub and LeVeque 1983)."""
    n, m = counts[N], more_counts[N]
    for c in range(COUNTS):
        if c != ARGMAX:
            counts[c] += more_counts[c]
    if m == 0:
        return
    if n == 0:
        moments[:] = more
        counts[ARGMAX] = more_counts[ARGMAX]
        return
    weight = n * m / (n + m)
    for x, y, xx, yy, xy in ((MEAN_P, MEAN_Q, M2_P, M2_Q, CO_PQ), (MEAN_A, MEAN_B, M2_A, M2_B, CO_AB)):
        dx, dy = more[x] - moments[x], more[y] - moments[y]
        moments[xx] += more[xx] + dx * dx * weight
        moments[yy] += more[yy] + dy * dy * weight
        moments[xy] += more[xy] + dx * dy * weight
        moments[x] += dx * m / (n + m)
        moments[y] += dy * m / (n + m)
    for x, xx in ((MEAN_ABS, M2_ABS), (MEAN_DIFF, M2_DIFF)):
        dx = more[x] - moments[x]
        moments[xx] += more[xx] + dx * dx * weight
        moments[x] += dx * m / (n + m)
    if more[MAX_ABS] > moments[MAX_ABS]:
        counts[ARGMAX] = more_counts[ARGMAX]
    moments[MAX_ABS] = max(moments[MAX_ABS], more[MAX_ABS])
    moments[MAX_DIFF] = max(moments[MAX_DIFF], more[MAX_DIFF])
    for c in range(SUM_D, MOMENTS):
        moments[c] += more[c]


def reduce_spans(moments: Array, counts: Array, key: Array, out: Array, out_counts: Array, clusters: Array) -> None:
    """Merge spans into groups: span i goes to row key[i] of out (groups, MOMENTS), out_counts and clusters (groups, CLUSTER_SUMS)."""
    for i in range(key.shape[0]):
        n = counts[i, N]
        absorb(out[key[i]], out_counts[key[i]], moments[i], counts[i])
        if n == 0:
            continue
        k1, k3, w1, size = -moments[i, SUM_D], moments[i, SUM_K3], moments[i, SUM_W1], moments[i, MEAN_ABS] * n
        row = clusters[key[i]]
        row[CLUSTERS] += 1
        row[NN] += float(n) * n
        row[W1_W1] += w1 * w1
        row[W1_N] += w1 * n
        row[ABS_ABS] += size * size
        row[ABS_N] += size * n
        row[K1_K1] += k1 * k1
        row[K1_N] += k1 * n
        row[K3_K3] += k3 * k3
        row[K3_N] += k3 * n
        row[K1_K3] += k1 * k3


def bin_of(bits: int) -> int:
    """Histogram bin of a non-negative float32 with these bits."""
    if bits == 0:
        return 0
    return min(max((bits >> 14) - (127 + LOWEST_EXPONENT) * BINS_PER_OCTAVE, 0), BINS - 2) + 1


def select(values: Array, bits: Array, ranks: Array, histogram: Array, out: Array) -> None:
    """out[k] = the ranks[k]-th smallest of ``values`` (float32, non-negative; ``bits`` is the same memory as uint32).

    Exact: the histogram says which bin holds a rank, and only that bin's values are sorted. Adds the values to ``histogram`` (BINS).
    ranks must be within 0..len(values) - 1.
    """
    n = values.shape[0]
    if n <= SORT_BELOW:
        for i in range(n):
            histogram[bin_of(bits[i])] += 1
        ordered = np.sort(values)
        for k in range(ranks.shape[0]):
            out[k] = ordered[ranks[k]]
        return
    local = np.zeros(BINS, np.int64)
    for i in range(n):
        local[bin_of(bits[i])] += 1
    histogram += local
    wanted = np.full(ranks.shape[0], 0, np.int64)  # bin that holds each rank
    below = np.zeros(ranks.shape[0], np.int64)  # values in the bins under it
    slot = np.full(BINS, -1, np.int64)  # where a wanted bin's values go in ``kept``
    for k in range(ranks.shape[0]):
        seen = np.int64(0)
        b = 0
        while seen + local[b] <= ranks[k]:
            seen += local[b]
            b += 1
        wanted[k], below[k] = b, seen
    size = np.int64(0)
    first = np.full(BINS, -1, np.int64)
    for k in range(ranks.shape[0]):
        b = wanted[k]
        if b > 0 and slot[b] < 0:
            slot[b], first[b] = size, size
            size += local[b]
    kept = np.empty(size, np.float32)
    for i in range(n):
        b = bin_of(bits[i])
        if slot[b] >= 0:
            kept[slot[b]] = values[i]
            slot[b] += 1
    for b in range(BINS):
        if first[b] >= 0:
            kept[first[b] : slot[b]] = np.sort(kept[first[b] : slot[b]])
    for k in range(ranks.shape[0]):
        b = wanted[k]
        out[k] = 0.0 if b == 0 else kept[first[b] + ranks[k] - below[k]]


def conditional(
    a: Array, a_valid: Array, a_bit: int, b: Array, b_valid: Array, b_bit: int, mask: Array, mask_bit: int,
    a_start: Array, b_start: Array, mask_start: Array, length: Array, flags: Array, flag_start: Array, out: Array,
) -> None:
    """Sums by a per-token flag: out[f] += (tokens, Σ|d|, Σ k3) over usable tokens whose flag is f (0 or 1; others are left out).

    Spans as in ``measure``; span i's flags are flags[flag_start[i]:][:length[i]] (int8).
    """
    for i in range(length.shape[0]):
        for j in range(length[i]):
            flag = flags[flag_start[i] + j]
            if flag < 0 or (mask_start[i] >= 0 and not bit(mask, mask_bit + mask_start[i] + j)):
                continue
            here_a, here_b = a_start[i] + j, b_start[i] + j
            if a_valid.shape[0] > 0 and not bit(a_valid, a_bit + here_a):
                continue
            if b_valid.shape[0] > 0 and not bit(b_valid, b_bit + here_b):
                continue
            d = np.float64(b[here_b]) - np.float64(a[here_a])
            if not math.isfinite(d):
                continue
            out[flag, 0] += 1
            out[flag, 1] += abs(d)
            out[flag, 2] += math.expm1(d) - d


def first_difference(a: Array, b: Array, a_start: Array, b_start: Array, length: Array, out: Array) -> None:
    """out[i] = first offset at which a[a_start[i]:][:length[i]] and b[b_start[i]:][:length[i]] (int32) differ, -1 where they are equal."""
    for i in range(length.shape[0]):
        out[i] = -1
        for j in range(length[i]):
            if a[a_start[i] + j] != b[b_start[i] + j]:
                out[i] = j
                break
