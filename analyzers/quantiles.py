"""Quantiles of non-negative float32 values: exact where the values are at hand, from a mergeable histogram otherwise.

The histogram counts every ``STRIDE``-th value by its own bits without the lowest 14: 512 bins an octave, over the whole range of float32.
Bin 0 holds 0 and what is below 2⁻¹³⁵.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

Array = Any

SHIFT = 14
BINS_PER_OCTAVE = 1 << (23 - SHIFT)  # a float32 has 23 bits of mantissa
BINS = 1 << (31 - SHIFT)
STRIDE = 8

SORT_BELOW = 4096
"""Fewer values than this are sorted; from more, only those near the wanted rank."""
SAMPLE = 128
"""One value of this many brackets a rank."""
DEVIATIONS = 4.0
"""Half-width of the bracket in standard deviations of the sample's rank; a bracket that misses (values in some order) is widened to all."""


def count(values: Array, histogram: Array) -> None:
    """Add a part of non-negative float32 ``values`` to ``histogram`` (BINS)."""
    bins = np.ascontiguousarray(values[::STRIDE]).view(np.uint32) >> np.uint32(SHIFT)
    if len(bins):
        low = int(bins.min())
        found = np.bincount((bins - np.uint32(low)).view(np.int32))
        histogram[low : low + len(found)] += found


def exact_quantiles(values: Array, shares: Sequence[float]) -> list[float]:
    """Quantiles (of ascending ``shares``) by linear interpolation between order statistics (numpy's default, DuckDB's quantile_cont).
    ``values`` must not be empty.

    Exact: a sorted sample brackets the rank, and the values within the bracket are sorted.
    """
    n = len(values)
    sample = np.sort(values if n <= SORT_BELOW else values[::SAMPLE])
    found, below, everything = [], 0, values  # ``values`` shrinks to its tail; ``below`` is what was cut off
    for share in shares:
        place = share * (n - 1)
        rank = math.floor(place)
        if n <= SORT_BELOW:
            under, over = sample[rank], sample[min(rank + 1, n - 1)]
        else:
            low, high = _bracket(sample, share)
            if (1 - share) * n < len(values) / 4:
                values, before = values[values >= low], len(values)
                below += before - len(values)
            if rank >= below:
                under, over = _neighbours(values, rank - below, low, high)
            else:  # the cut was too high
                under, over = np.sort(everything)[[rank, min(rank + 1, n - 1)]]
        found.append(float(under) + (float(over) - float(under)) * (place - rank))
    return found


def _bracket(sample: Array, share: float) -> tuple[np.float32, np.float32]:
    """Values between which the quantile almost surely lies, from a sorted sample."""
    margin = math.ceil(DEVIATIONS * math.sqrt(len(sample) * share * (1 - share))) + 2
    middle = round(share * (len(sample) - 1))
    low = sample[middle - margin] if middle >= margin else np.float32(0)
    high = sample[middle + margin] if middle + margin < len(sample) else np.float32(np.inf)
    return low, high


def _neighbours(values: Array, rank: int, low: np.float32, high: np.float32) -> tuple[float, float]:
    """The rank-th and the next smallest of ``values`` (the same one at the end), looked for between ``low`` and ``high`` first."""
    after = min(rank + 1, len(values) - 1)
    above = values >= low
    below = len(values) - int(np.count_nonzero(above))
    inside = values[above & (values <= high)]
    if rank < below or below + len(inside) <= after:
        below, inside, low = 0, values, np.float32(-1)
    if low < high:  # otherwise one value, perhaps most of all: in order as it is
        inside = np.partition(inside, [rank - below, after - below])
    return inside[rank - below], inside[after - below]


class Distribution:
    """Values that are added part by part. Exact while at most ``KEEP`` of them are kept; beyond that a quantile is the middle of its bin in
    the histogram of every ``STRIDE``-th value: off by at most 0.1 % and the error of that sample."""

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
            return [*exact_quantiles(np.concatenate(self._kept), shares)]
        upto = np.cumsum(self.histogram)
        return [bin_middle(int(np.searchsorted(upto, share * (upto[-1] - 1), side="right"))) for share in shares]


def bin_middle(index: int) -> float:
    """The value in the middle of a histogram bin; 0 for bin 0."""
    low, high = (float(np.uint32((index + side) << SHIFT).view(np.float32)) for side in (0, 1))
    return (low + high) / 2 if index else 0.0
