"""Mergeable statistics of compared tokens, and the metrics that follow from them.

A ``TokenStats`` is what two evaluations' log-probabilities of some tokens come down to. Adding two gives that of all their
tokens, whatever the order and grouping (up to float64 rounding), so partial results of threads or machines add up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlaudit.analyzers import token_sums as ts

Array = Any

QUANTILES: dict[str, tuple[str, float]] = {
    "logp_diff_p50": ("logp", 0.5),
    "logp_diff_p90": ("logp", 0.9),
    "logp_diff_p99": ("logp", 0.99),
    "logp_diff_p999": ("logp", 0.999),
    "prob_diff_p50": ("prob", 0.5),
    "prob_diff_p99": ("prob", 0.99),
}
"""Metric name to the distribution it is a quantile of (|Δ log p| or |Δp|) and which one."""

N, W1, SIZE, K1, K3 = range(5)
"""Rows of the cluster products: a sequence's tokens and its sums of w - 1, |Δ|, -Δ and k3."""


@dataclass(slots=True)
class TokenStats:
    """sums: over tokens. clusters: how many sequences; products: Σ over sequences of the outer product of the five quantities above."""

    sums: ts.Sums = field(default_factory=ts.Sums)
    clusters: int = 0
    products: Array = field(default_factory=lambda: np.zeros((5, 5)))

    @classmethod
    def of(cls, measured: ts.Measured) -> TokenStats:
        """From one measurement whose spans are one sequence each."""
        spans = measured.spans
        rows = np.stack([spans.n, spans.d + spans.k3, spans.size, -spans.d, spans.k3])
        # Spans are few beside tokens; einsum keeps BLAS from starting threads for them.
        return cls(measured.sums, int(np.count_nonzero(spans.n)), np.einsum("in,jn->ij", rows, rows))

    @property
    def tokens(self) -> int:
        """Tokens that entered the statistics."""
        return self.sums.n

    @property
    def counts(self) -> ts.Counts:
        """Counts of tokens, used or not."""
        return self.sums.counts

    def add(self, other: TokenStats) -> None:
        """Take in the statistics of other tokens."""
        self.sums.add(other.sums)
        self.clusters += other.clusters
        self.products = self.products + other.products

    @np.errstate(over="ignore", invalid="ignore")  # such a metric is withheld
    def metrics(self, quantiles: Mapping[str, float | None] | None = None) -> dict[str, float | None]:
        """The metrics by catalogue name; None where undefined (no variance) or beyond float64; empty without tokens."""
        n, s = self.tokens, self.sums
        if n == 0:
            return {}
        w1 = s.mean[ts.D] + s.total[ts.K3] / n
        found = {
            "pearson_prob": pearson(s, ts.P, ts.T, s.cross[0]),
            "pearson_logp": pearson(s, ts.X, ts.D, s.cross[1]),
            "prob_diff_mean": s.mean[ts.DIFF],
            "prob_diff_std": deviation(s.squares[ts.DIFF], n),
            "prob_diff_max": s.largest[1],
            "logp_diff_mean": s.mean[ts.SIZE],
            "logp_diff_std": deviation(s.squares[ts.SIZE], n),
            "logp_diff_max": s.largest[0],
            "k1": 0.0 - s.mean[ts.D],
            "k3": s.total[ts.K3] / n,
            "ratio_mean": 1.0 + w1,
            "ratio_gt2": s.counts.beyond_2 / n,
            "ess": (1.0 + w1) ** 2 / (1.0 + 2.0 * w1 + s.total[ts.W1_SQUARED] / n),
        }
        return {name: finite(value) for name, value in {**found, **(quantiles or {})}.items()}

    def ratio_mean_error(self) -> float | None:
        """Standard error of ``ratio_mean`` with the sequence as the unit (see ``clustered_error``)."""
        return clustered_error(self.products, W1, N, self._total_w1(), float(self.tokens), self.clusters)

    def _total_w1(self) -> float:
        """Sum of w - 1 = Δ + k3."""
        return float(self.sums.mean[ts.D] * self.tokens + self.sums.total[ts.K3])

    def logp_diff_error(self) -> float | None:
        """Clustered standard error of ``logp_diff_mean``."""
        return clustered_error(self.products, SIZE, N, self.sums.mean[ts.SIZE] * self.tokens, float(self.tokens), self.clusters)

    def k3_over_k1(self) -> tuple[float, float] | None:
        """k3/k1 and its clustered standard error; None without a positive k1."""
        k1, k3 = -self.sums.mean[ts.D] * self.tokens, self.sums.total[ts.K3]
        error = clustered_error(self.products, K3, K1, k3, k1, self.clusters) if k1 > 0 else None
        return None if error is None else (float(k3 / k1), error)


def clustered_error(products: Array, top: int, base: int, total: float, base_total: float, clusters: int) -> float | None:
    """Standard error of the ratio R = Σs/Σn of sums over independent clusters (here: sequences), by linearisation:
    sqrt(G/(G-1) · Σ(s - R n)²) / |Σn|, the cluster-robust (sandwich) variance of Liang and Zeger (1986).

    top, base: rows of ``products`` (sums over clusters of products) that s and n are. None for fewer than two clusters, an empty
    base or overflow.
    """
    if clusters < 2 or base_total == 0:
        return None
    ratio = total / base_total
    spread = products[top, top] - 2.0 * ratio * products[top, base] + ratio * ratio * products[base, base]
    return finite(math.sqrt(max(spread, 0.0) * clusters / (clusters - 1)) / abs(base_total)) if math.isfinite(spread) else None


def pearson(sums: ts.Sums, first: int, change: int, product: float) -> float | None:
    """Pearson correlation of a quantity u (row ``first``) with u + v (v: row ``change``; product: their centred sum of products).

    None where a side doesn't vary beyond rounding (scipy.stats.pearsonr warns there).
    """
    u, v = float(sums.squares[first]), float(sums.squares[change])
    other = u + 2.0 * product + v
    rounding = 1e-14 * (u + v) + sums.n * (4 * np.finfo(np.float64).eps * float(sums.mean[first])) ** 2
    if sums.n < 2 or u <= rounding or other <= rounding:
        return None
    return finite(min(1.0, max(-1.0, (u + product) / (math.sqrt(u) * math.sqrt(other)))))


def deviation(squares: float, n: int) -> float | None:
    """Sample standard deviation (divisor n - 1, as torch.std and DuckDB's stddev); None for one value."""
    return math.sqrt(max(squares, 0.0) / (n - 1)) if n > 1 else None


def finite(value: float | None) -> float | None:
    """A plain float, None for None, NaN and infinities."""
    return float(value) if value is not None and math.isfinite(value) else None
