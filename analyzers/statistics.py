"""Mergeable statistics of compared tokens, and the metrics that follow from them.

A ``TokenStats`` is what two evaluations' log-probabilities of some tokens come down to. Merging two gives that of all their
tokens, whatever the order and grouping (up to float64 rounding), so partial results of threads or machines add up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlaudit.analyzers import token_kernel as tk

Array = Any

QUANTILES: dict[str, tuple[str, float]] = {
    "logp_diff_p50": ("logp", 0.5), "logp_diff_p90": ("logp", 0.9), "logp_diff_p99": ("logp", 0.99), "logp_diff_p999": ("logp", 0.999),
    "prob_diff_p50": ("prob", 0.5), "prob_diff_p99": ("prob", 0.99),
}
"""Metric name to the distribution it is a quantile of (|Δ log p| or |Δp|) and which one."""


@dataclass(slots=True)
class TokenStats:
    """Sufficient statistics; columns are named in ``token_kernel``."""

    moments: Array = field(default_factory=lambda: np.zeros(tk.MOMENTS))
    counts: Array = field(default_factory=lambda: np.zeros(tk.COUNTS, np.int64))
    clusters: Array = field(default_factory=lambda: np.zeros(tk.CLUSTER_SUMS))

    @property
    def tokens(self) -> int:
        """Tokens that entered the statistics."""
        return int(self.counts[tk.N])

    def merge(self, other: TokenStats) -> TokenStats:
        """The statistics of both; neither changes."""
        both = TokenStats(self.moments.copy(), self.counts.copy(), self.clusters + other.clusters)
        tk.absorb(both.moments, both.counts, other.moments, other.counts)
        return both

    def metrics(self, quantiles: Mapping[str, float | None]) -> dict[str, float | None]:
        """The metrics by catalogue name; None where undefined (no tokens, no variance) or beyond float64."""
        n, m = self.tokens, self.moments
        if n == 0:
            return {}
        mean_w1 = m[tk.SUM_W1] / n
        found = {
            "pearson_prob": pearson(m[tk.M2_P], m[tk.M2_Q], m[tk.CO_PQ], m[tk.MEAN_P], n),
            "pearson_logp": pearson(m[tk.M2_A], m[tk.M2_B], m[tk.CO_AB], m[tk.MEAN_A], n),
            "prob_diff_mean": m[tk.MEAN_DIFF], "prob_diff_std": deviation(m[tk.M2_DIFF], n), "prob_diff_max": m[tk.MAX_DIFF],
            "logp_diff_mean": m[tk.MEAN_ABS], "logp_diff_std": deviation(m[tk.M2_ABS], n), "logp_diff_max": m[tk.MAX_ABS],
            "k1": -m[tk.SUM_D] / n, "k3": m[tk.SUM_K3] / n,
            "ratio_mean": 1.0 + mean_w1, "ratio_gt2": self.counts[tk.BEYOND_2] / n,
            "ess": (1.0 + mean_w1) ** 2 / (1.0 + 2.0 * mean_w1 + m[tk.SUM_W1_SQUARED] / n),
        }
        return {name: finite(value) for name, value in {**found, **quantiles}.items()}

    def ratio_mean_error(self) -> float | None:
        """Standard error of ``ratio_mean`` with the sequence as the unit (see ``clustered_error``)."""
        c = self.clusters
        return clustered_error(self.moments[tk.SUM_W1], float(self.tokens), c[tk.W1_W1], c[tk.W1_N], c[tk.NN], c[tk.CLUSTERS])

    def k3_over_k1(self) -> tuple[float, float] | None:
        """k3/k1 and its clustered standard error; None without a positive k1."""
        c, k1, k3 = self.clusters, -self.moments[tk.SUM_D], self.moments[tk.SUM_K3]
        error = clustered_error(k3, k1, c[tk.K3_K3], c[tk.K1_K3], c[tk.K1_K1], c[tk.CLUSTERS]) if k1 > 0 else None
        return None if error is None else (float(k3 / k1), error)

    def logp_diff_error(self) -> float | None:
        """Clustered standard error of ``logp_diff_mean``."""
        c, n = self.clusters, self.tokens
        return clustered_error(self.moments[tk.MEAN_ABS] * n, float(n), c[tk.ABS_ABS], c[tk.ABS_N], c[tk.NN], c[tk.CLUSTERS])


def clustered_error(total: float, base: float, squares: float, products: float, base_squares: float, clusters: float) -> float | None:
    """Standard error of the ratio Σs/Σn of sums over independent clusters (here: sequences), by linearisation:
    sqrt(G/(G-1) · Σ(s - R n)²) / Σn, the cluster-robust (sandwich) variance of Liang and Zeger (1986).

    squares, products, base_squares: Σs², Σs·n, Σn². None for fewer than two clusters, an empty base or overflow.
    """
    if clusters < 2 or base == 0:
        return None
    ratio = total / base
    spread = squares - 2.0 * ratio * products + ratio * ratio * base_squares
    return finite(math.sqrt(max(spread, 0.0) * clusters / (clusters - 1)) / abs(base)) if math.isfinite(spread) else None


def pearson(xx: float, yy: float, xy: float, mean: float, n: int) -> float | None:
    """Pearson correlation from centred sums; None where a side doesn't vary beyond rounding (scipy.stats.pearsonr warns there)."""
    floor = n * (4 * np.finfo(np.float64).eps * mean) ** 2
    if n < 2 or xx <= floor or yy <= floor:
        return None
    return finite(min(1.0, max(-1.0, xy / (math.sqrt(xx) * math.sqrt(yy)))))


def deviation(squares: float, n: int) -> float | None:
    """Sample standard deviation (divisor n - 1, as torch.std and DuckDB's stddev); None for one value."""
    return math.sqrt(max(squares, 0.0) / (n - 1)) if n > 1 else None


def finite(value: float | None) -> float | None:
    """A plain float, None for None, NaN and infinities."""
    return float(value) if value is not None and math.isfinite(value) else None


class Distribution:
    """Non-negative values by quantile: exact while few enough are kept, otherwise from a histogram.

    ``KEEP`` values are kept; beyond that a quantile is the middle of its bin, off by at most 0.1 % (512 bins an octave).
    """

    KEEP = 8 << 20
    RELATIVE_ERROR = 1 / (2 * tk.BINS_PER_OCTAVE)

    def __init__(self) -> None:
        self.histogram = np.zeros(tk.BINS, np.int64)
        self._kept: list[Array] | None = []
        self._size = 0

    @property
    def exact(self) -> bool:
        """True while quantiles are order statistics and not bins."""
        return self._kept is not None

    def add(self, values: Array, histogram: Array) -> None:
        """Take in ``values`` (float32) whose histogram is already counted."""
        self.histogram += histogram
        self._size += len(values)
        if self._kept is not None:
            self._kept.append(np.array(values))
            if self._size > self.KEEP:
                self._kept = None

    def merge(self, other: Distribution) -> None:
        """Take in another distribution's values."""
        self.histogram += other.histogram
        self._size += other._size
        if self._kept is not None:
            self._kept = None if other._kept is None or self._size > self.KEEP else self._kept + other._kept

    def quantiles(self, shares: list[float]) -> list[float | None]:
        """Quantiles, interpolated linearly between order statistics (numpy's and DuckDB's quantile_cont's rule)."""
        if self._size == 0:
            return [None] * len(shares)
        if self._kept is not None:
            return [float(q) for q in np.quantile(np.concatenate(self._kept).astype(np.float64), shares)]
        below = np.cumsum(self.histogram)
        return [bin_middle(int(np.searchsorted(below, share * (self._size - 1), side="right"))) for share in shares]


def bin_middle(index: int) -> float:
    """The value in the middle of a histogram bin; bin 0 is exactly 0."""
    if index == 0:
        return 0.0
    low, high = (np.uint32((index - 1 + (127 + tk.LOWEST_EXPONENT) * tk.BINS_PER_OCTAVE + side) << 14).view(np.float32) for side in (0, 1))
    return (float(low) + float(high)) / 2
