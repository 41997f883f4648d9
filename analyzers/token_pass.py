"""The token pass: every compared token once, group of steps by group of steps, into mergeable statistics."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from rlaudit.analyzers import token_sums as ts
from rlaudit.analyzers.grouping import UNKNOWN, Group
from rlaudit.analyzers.pairing import Spans
from rlaudit.analyzers.quantiles import Distribution, exact_quantiles
from rlaudit.analyzers.statistics import QUANTILES, TokenStats

Array = Any
WORST = 5
Quantiles = Callable[[], dict[str, float | None]]
"""Waits for the quantiles of some tokens."""


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
    """What one comparison (two evaluations) comes to. by_key values carry exact quantiles by metric name; distributions: by lag class.

    pending: quantiles that are still being worked out elsewhere, by key; ``settle`` waits for them.
    """

    by_key: dict[Key, tuple[TokenStats, dict[str, float | None]]] = field(default_factory=dict)
    pending: dict[Key, Quantiles] = field(default_factory=dict)
    distributions: dict[str, dict[str, Distribution]] = field(default_factory=dict)
    worst: list[WorstSpan] = field(default_factory=list)

    def lag_class(self, *names: str) -> TokenStats:
        """All tokens of some lag classes: equal (0), unknown, other."""
        total = TokenStats()
        for key, (stats, _) in self.by_key.items():
            if lag_class(key.lag) in names:
                total.add(stats)
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

    def settle(self) -> None:
        """Wait for pending quantiles."""
        for key, result in self.pending.items():
            self.by_key[key] = (self.by_key[key][0], result())
        self.pending = {}

    def add(self, other: TokenPass) -> None:
        """Take in another, settled, group of steps. Groups are taken in a fixed order, so that the result doesn't depend on timing."""
        for key, measured in other.by_key.items():
            if key in self.by_key:
                raise ValueError(f"step {key.step} lies in two groups")
            self.by_key[key] = measured
        for name, kinds in other.distributions.items():
            mine = self.distributions.setdefault(name, {kind: Distribution() for kind in ("logp", "prob")})
            for kind, distribution in kinds.items():
                mine[kind].merge(distribution)
        self.worst = heapq.nlargest(WORST, [*self.worst, *other.worst])


def lag_class(lag: int | None) -> str:
    """equal, other or unknown."""
    return "unknown" if lag is None else "equal" if lag == 0 else "other"


def now(work: Callable[[], dict[str, float | None]]) -> Quantiles:
    """Do it at once."""
    result = work()
    return lambda: result


def measure_spans(group: Group, spans: Spans, later: Callable[[Callable[[], dict[str, float | None]]], Quantiles] = now) -> TokenPass:
    """Statistics of one comparison in one group of steps. ``later`` starts the work on quantiles and returns what waits for it."""
    found = TokenPass()
    for key, members in _by_key(group, spans):
        mine = Spans(*(column[members] for column in spans))
        measured = ts.measure(group.tokens, mine.a_start, mine.b_start, mine.mask_start, mine.length)
        kinds = found.distributions.setdefault(lag_class(key.lag), {"logp": Distribution(), "prob": Distribution()})
        kinds["logp"].add(measured.sizes, measured.size_histogram)
        kinds["prob"].add(measured.differences, measured.difference_histogram)
        found.by_key[key] = (TokenStats.of(measured), {})
        found.pending[key] = later(partial(_quantiles, measured.sizes, measured.differences))
        if lag_class(key.lag) != "other":
            found.worst += _worst(group, mine, measured.spans)
    found.worst = heapq.nlargest(WORST, found.worst)
    return found


def _by_key(group: Group, spans: Spans) -> list[tuple[Key, Array]]:
    """Which spans belong to each key, keys in ascending order."""
    if len(spans.length) == 0:
        return []
    columns = np.stack([group.attempt[spans.sequence], group.step[spans.sequence], spans.lag])
    distinct, number = np.unique(columns, axis=1, return_inverse=True)
    number = number.reshape(-1)
    order = np.argsort(number, kind="stable")
    members = np.split(order, np.cumsum(np.bincount(number))[:-1])
    return [
        (Key(int(a), int(s), None if lag == UNKNOWN else int(lag)), mine) for (a, s, lag), mine in zip(distinct.T, members, strict=True)
    ]


def _quantiles(sizes: Array, differences: Array) -> dict[str, float | None]:
    """Exact quantiles of |Δ log p| and |Δp|, by metric name."""
    found: dict[str, float | None] = {}
    for kind, values in (("logp", sizes), ("prob", differences)):
        wanted = [(metric, share) for metric, (of, share) in QUANTILES.items() if of == kind]
        results = exact_quantiles(values, [share for _, share in wanted]) if len(values) else [None] * len(wanted)
        found.update(zip((metric for metric, _ in wanted), results, strict=True))
    return found


def _worst(group: Group, spans: Spans, sums: ts.SpanSums) -> list[WorstSpan]:
    """The spans of largest mean |Δ log p|."""
    mean = np.divide(sums.size, sums.n, out=np.zeros(len(sums.n)), where=sums.n > 0)
    top = [i for i in np.argsort(-mean, kind="stable")[:WORST].tolist() if sums.n[i] > 0]
    return [_described(group, spans, i, float(mean[i]), int(sums.n[i])) for i in top]


def _described(group: Group, spans: Spans, i: int, mean: float, tokens: int) -> WorstSpan:
    """One span with the place of its largest |Δ log p|."""
    a, b, length = int(spans.a_start[i]), int(spans.b_start[i]), int(spans.length[i])
    logprobs, missing, sampled = group.tokens.logprobs, group.tokens.missing, group.tokens.sampled
    size = np.abs(logprobs[b : b + length].astype(np.float64) - logprobs[a : a + length])
    usable = np.isfinite(size)
    if missing is not None:
        usable &= ~(missing[a : a + length] | missing[b : b + length])
    if sampled is not None and spans.mask_start[i] >= 0:
        usable &= sampled[int(spans.mask_start[i]) :][:length]
    size = np.where(usable, size, -1.0)
    at = int(size.argmax())
    sequence = spans.sequence[i]
    return WorstSpan(mean, int(group.step[sequence]), str(group.ids[sequence]), tokens, int(spans.offset[i]) + at, float(size[at]))
