"""The token pass: every compared token once, group of steps by group of steps, into mergeable statistics."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from rlaudit.analyzers import token_kernel as tk
from rlaudit.analyzers.compiled import Kernels
from rlaudit.analyzers.grouping import UNKNOWN, Group
from rlaudit.analyzers.pairing import Spans
from rlaudit.analyzers.statistics import QUANTILES, Distribution, TokenStats

Array = Any
WORST = 5


class Key(NamedTuple):
    """What statistics are kept apart by. lag: optimizer steps between the two evaluations' weights, None where unknown."""

    attempt: int
    step: int
    lag: int | None


class WorstSpan(NamedTuple):
    """A compared sequence with a large mean |Δ log p|. position: response position of its largest |Δ log p|."""

    mean: float
    step: int
    sequence_id: str
    tokens: int
    position: int
    largest: float


@dataclass(slots=True)
class TokenPass:
    """What one comparison (two evaluations) comes to. by_key values carry exact quantiles by metric name."""

    by_key: dict[Key, tuple[TokenStats, dict[str, float | None]]] = field(default_factory=dict)
    distributions: dict[str, dict[str, Distribution]] = field(default_factory=dict)
    worst: list[WorstSpan] = field(default_factory=list)

    def lag_class(self, name: str) -> TokenStats:
        """All tokens of a lag class: equal (0), unknown, or other."""
        total = TokenStats()
        for key, (stats, _) in self.by_key.items():
            if lag_class(key.lag) == name:
                total = total.merge(stats)
        return total

    def quantiles(self, name: str) -> dict[str, float | None]:
        """Quantiles over all tokens of a lag class, by metric name."""
        found: dict[str, float | None] = {}
        for kind, distribution in self.distributions.get(name, {}).items():
            wanted = [(metric, share) for metric, (of, share) in QUANTILES.items() if of == kind]
            found.update(zip((metric for metric, _ in wanted), distribution.quantiles([share for _, share in wanted]), strict=True))
        return found

    def exact(self, name: str) -> bool:
        """True where the quantiles of a lag class are order statistics."""
        return all(distribution.exact for distribution in self.distributions.get(name, {}).values())

    def add(self, other: TokenPass) -> None:
        """Take in another group of steps. Groups are taken in a fixed order, so that the result doesn't depend on timing."""
        for key, (stats, quantiles) in other.by_key.items():
            if key in self.by_key:
                raise ValueError(f"step {key.step} lies in two groups")
            self.by_key[key] = (stats, quantiles)
        for name, kinds in other.distributions.items():
            mine = self.distributions.setdefault(name, {kind: Distribution() for kind in ("logp", "prob")})
            for kind, distribution in kinds.items():
                mine[kind].merge(distribution)
        self.worst = heapq.nlargest(WORST, [*self.worst, *other.worst])


def lag_class(lag: int | None) -> str:
    """equal, other or unknown."""
    return "unknown" if lag is None else "equal" if lag == 0 else "other"


def measure_spans(kernels: Kernels, group: Group, spans: Spans) -> TokenPass:
    """Statistics of one comparison in one group of steps."""
    found = TokenPass()
    if len(spans.length) == 0:
        return found
    order, key, keys = _keys(group, spans)
    spans = Spans(*(column[order] for column in spans))
    total = int(spans.length.sum())
    moments, counts = np.zeros((len(order), tk.MOMENTS)), np.zeros((len(order), tk.COUNTS), np.int64)
    sizes, differences = np.empty(total, np.float32), np.empty(total, np.float32)
    lists, mask = group.logprobs, group.sampled
    kernels.measure(
        lists.values, lists.valid, lists.valid_bit, lists.values, lists.valid, lists.valid_bit, mask.values, mask.bit,
        spans.a_start, spans.b_start, spans.mask_start, spans.length, moments, counts, sizes, differences,
    )
    reduced = np.zeros((len(keys), tk.MOMENTS)), np.zeros((len(keys), tk.COUNTS), np.int64), np.zeros((len(keys), tk.CLUSTER_SUMS))
    kernels.reduce_spans(moments, counts, key, *reduced)
    ends = np.cumsum(reduced[1][:, tk.N])
    for i, name in enumerate(keys):
        stats = TokenStats(reduced[0][i], reduced[1][i], reduced[2][i])
        values = slice(int(ends[i]) - stats.tokens, int(ends[i]))
        mine = found.distributions.setdefault(lag_class(name.lag), {"logp": Distribution(), "prob": Distribution()})
        quantiles = {**_quantiles(kernels, sizes[values], "logp", mine["logp"]), **_quantiles(kernels, differences[values], "prob", mine["prob"])}
        found.by_key[name] = (stats, quantiles)
    found.worst = _worst(group, spans, moments, counts)
    return found


def _keys(group: Group, spans: Spans) -> tuple[Array, Array, list[Key]]:
    """Order that brings spans of one key together, each ordered span's key number, and the keys."""
    columns = np.stack([group.attempt[spans.sequence], group.step[spans.sequence], spans.lag])
    distinct, number = np.unique(columns, axis=1, return_inverse=True)
    number = number.reshape(-1).astype(np.int64)
    order = np.argsort(number, kind="stable")
    keys = [Key(int(a), int(s), None if lag == UNKNOWN else int(lag)) for a, s, lag in distinct.T]
    return order, number[order], keys


def _quantiles(kernels: Kernels, values: Array, kind: str, distribution: Distribution) -> dict[str, float | None]:
    """Exact quantiles of ``values``, which ``distribution`` takes in."""
    wanted = [(metric, share) for metric, (of, share) in QUANTILES.items() if of == kind]
    if len(values) == 0:
        return dict.fromkeys((metric for metric, _ in wanted), None)
    place = np.array([share for _, share in wanted]) * (len(values) - 1)
    low = np.floor(place).astype(np.int64)
    ranks = np.concatenate([low, np.minimum(low + 1, len(values) - 1)])
    at, histogram = np.zeros(len(ranks)), np.zeros(tk.BINS, np.int64)
    kernels.select(values, values.view(np.uint32), ranks, histogram, at)
    distribution.add(values, histogram)
    under, over = at[: len(low)], at[len(low) :]
    return {metric: float(q) for (metric, _), q in zip(wanted, under + (over - under) * (place - low), strict=True)}


def _worst(group: Group, spans: Spans, moments: Array, counts: Array) -> list[WorstSpan]:
    """The spans of largest mean |Δ log p| at equal or unknown policy version."""
    usable = np.flatnonzero((counts[:, tk.N] > 0) & ((spans.lag == 0) | (spans.lag == UNKNOWN)))
    top = usable[np.argsort(-moments[usable, tk.MEAN_ABS], kind="stable")[:WORST]]
    return [
        WorstSpan(
            float(moments[i, tk.MEAN_ABS]), int(group.step[spans.sequence[i]]), str(group.ids[spans.sequence[i]]), int(counts[i, tk.N]),
            int(spans.offset[i] + counts[i, tk.ARGMAX]), float(moments[i, tk.MAX_ABS]),
        )
        for i in top
    ]
