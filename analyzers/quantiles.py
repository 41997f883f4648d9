"""Quantiles of non-negative float32 values: exact where the values are at hand, from a mergeable histogram otherwise.

The histogram counts by the values' own bits: bin 0 is exactly 0, then 512 bins an octave from 2⁻⁴⁰ to 2⁸; the end bins take what is beyond.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = Any

LOWEST_EXPONENT, OCTAVES, BINS_PER_OCTAVE = -40, 48, 512
BINS = OCTAVES * BINS_PER_OCTAVE + 1
SORT_BELOW = 4096
"""Fewer values than this are sorted; more are narrowed down by the histogram first."""
_SHIFT = 23 - 9  # a float32 has 23 bits of mantissa; 512 bins an octave keep 9 of them
_BASE = (127 + LOWEST_EXPONENT) * BINS_PER_OCTAVE


def histogram_of(values: Array) -> tuple[Array, Array]:
    """Bin of each value, and the values in each bin."""
    bins = (values.view(np.uint32) >> np.uint32(_SHIFT)).view(np.int32)
    np.subtract(bins, _BASE - 1, out=bins)
    np.clip(bins, 1, BINS - 1, out=bins)
    zeros = len(values) - np.count_nonzero(values)
    if zeros:
        bins[values == 0] = 0
    return bins, np.bincount(bins, minlength=BINS)


def order_statistics(values: Array, ranks: Array, bins: Array, histogram: Array) -> Array:
    """The ranks[k]-th smallest of ``values``, exactly: the histogram says which bin holds a rank, and only its values are sorted."""
    if len(values) <= SORT_BELOW:
        return np.sort(values)[ranks]
    upto = np.cumsum(histogram)
    found = np.empty(len(ranks), np.float32)
    wanted = np.searchsorted(upto, ranks, side="right")
    for b in np.unique(wanted).tolist():
        mine = wanted == b
        if b == 0:
            found[mine] = 0.0
            continue
        within = np.sort(values[bins == b])
        found[mine] = within[ranks[mine] - (upto[b] - histogram[b])]
    return found


def exact_quantiles(values: Array, shares: Sequence[float], bins: Array, histogram: Array) -> list[float]:
    """Quantiles by linear interpolation between order statistics (numpy's default, DuckDB's quantile_cont). ``values`` must not be empty."""
    place = np.array(shares) * (len(values) - 1)
    low = np.floor(place).astype(np.int64)
    ranks = np.concatenate([low, np.minimum(low + 1, len(values) - 1)])
    at = order_statistics(values, ranks, bins, histogram).astype(np.float64)
    under, over = at[: len(low)], at[len(low) :]
    return [float(q) for q in under + (over - under) * (place - low)]


class Distribution:
    """Values that are added part by part. Exact while at most ``KEEP`` of them are kept; beyond that a quantile is the middle of its bin,
    off by at most 0.1 %."""

    KEEP = 8 << 20
    RELATIVE_ERROR = 1 / (2 * BINS_PER_OCTAVE)

    def __init__(self) -> None:
        self.histogram = np.zeros(BINS, np.int64)
        self._kept: list[Array] | None = []
        self._size = 0

    @property
    def exact(self) -> bool:
        """True while quantiles are order statistics and not bins."""
        return self._kept is not None

    def add(self, values: Array, histogram: Array) -> None:
        """Take in ``values`` (float32), whose histogram is already counted."""
        self.histogram += histogram
        self._size += len(values)
        if self._kept is not None:
            self._kept = [*self._kept, values] if self._size <= self.KEEP else None

    def merge(self, other: Distribution) -> None:
        """Take in another distribution's values."""
        self.histogram += other.histogram
        self._size += other._size
        if self._kept is not None:
            self._kept = None if other._kept is None or self._size > self.KEEP else self._kept + other._kept

    def quantiles(self, shares: Sequence[float]) -> list[float | None]:
        """Quantiles of all values; None without any."""
        if self._size == 0:
            return [None] * len(shares)
        if self._kept is not None:
            values = np.concatenate(self._kept)
            return [*exact_quantiles(values, shares, *histogram_of(values))]
        upto = np.cumsum(self.histogram)
        return [bin_middle(int(np.searchsorted(upto, share * (self._size - 1), side="right"))) for share in shares]


def bin_middle(index: int) -> float:
    """The value in the middle of a histogram bin; bin 0 is exactly 0."""
    if index == 0:
        return 0.0
    low, high = (float(np.uint32((index - 1 + _BASE + side) << _SHIFT).view(np.float32)) for side in (0, 1))
    return (low + high) / 2
