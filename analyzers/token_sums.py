"""Sufficient statistics of aligned log-probabilities: one pass over the tokens in blocks that stay in the processor's cache.

Notation: x = rollout log-probability, y = trainer log-probability, d = y - x, p = exp(x), q = exp(y), w = exp(d). All float64. Means and
second moments of a block are centred on the block's own mean; blocks, steps and whole runs merge by the pairwise update of Chan,
Golub and LeVeque
(1983). exp(d) - 1 - d is a Taylor series for small |d|, which has no cancellation.

Whole-array operations of numpy rather than compiled loops: about as quick here (the exponential and reading dominate), without
a second for loading or ten for compiling.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from rlaudit.analyzers.quantiles import BINS, count

Array = Any

BLOCK = 65536
"""Tokens at a time: ten float64 buffers of half a MiB, so that they stay in cache and numpy's cost for a call is small beside its work."""
FEW_SPANS = 64
"""Blocks of no more spans than this are gathered slice by slice, others by index."""

P, X, SIZE, DIFF, T, D = range(6)
"""Rows of the moments: p, x, |d|, |t|, t = q - p, and d."""
CROSS = ((P, T), (X, D))
"""Of these pairs sums of products are kept, too: with q = p + t and y = x + d they give the correlations of p with q and of x with y."""
_Y, _K3, _W1, _SCRATCH = range(6, 10)
K3, W1_SQUARED = range(2)
"""Places of the sums: exp(d) - 1 - d, and (w - 1)²."""

LOG_2 = math.log(2.0)
SERIES_BELOW = 1 / 16
"""Below this |d| the series to d⁷/7! is used: relative error below 3e-12."""
UNCENTRED = 1e-4
"""Variance over squared mean above which the mean is subtracted after squaring: at most four of sixteen digits are lost."""
LOWEST = -700.0
"""Above this exp(x) has full precision, so that q = p · w does too."""
CERTAIN = math.log(0.999)
"""A log-probability of exactly 0 is believable where the other side says at least this."""
ABOVE_ONE = 1e-3
"""A log-probability above this is no rounding error of a probability of 1."""


@dataclass(slots=True)
class Counts:
    """Tokens by what they are. bad_zero: exactly 0 where the other side is below CERTAIN. positive: above ABOVE_ONE."""

    beyond_2: int = 0
    equal_bits: int = 0
    not_sampled: int = 0
    missing: list[int] = field(default_factory=lambda: [0, 0])
    nonfinite: list[int] = field(default_factory=lambda: [0, 0])
    zero: list[int] = field(default_factory=lambda: [0, 0])
    bad_zero: list[int] = field(default_factory=lambda: [0, 0])
    positive: list[int] = field(default_factory=lambda: [0, 0])

    def add(self, other: Counts) -> None:
        """Take in another block's counts. Lists are (rollout, trainer)."""
        self.beyond_2 += other.beyond_2
        self.equal_bits += other.equal_bits
        self.not_sampled += other.not_sampled
        for mine, theirs in zip(self._sides(), other._sides(), strict=True):
            mine[0] += theirs[0]
            mine[1] += theirs[1]

    def _sides(self) -> tuple[list[int], ...]:
        return self.missing, self.nonfinite, self.zero, self.bad_zero, self.positive


@dataclass(slots=True)
class Sums:
    """Mergeable statistics of n tokens. mean, squares: of the six rows above, squares centred; cross: centred sums of products of CROSS;
    total: sums of the two quantities above; largest: max |d| and max |t|."""

    n: int = 0
    mean: Array = field(default_factory=lambda: np.zeros(6))
    squares: Array = field(default_factory=lambda: np.zeros(6))
    cross: Array = field(default_factory=lambda: np.zeros(2))
    total: Array = field(default_factory=lambda: np.zeros(2))
    largest: Array = field(default_factory=lambda: np.zeros(2))
    counts: Counts = field(default_factory=Counts)

    def add(self, other: Sums) -> None:
        """Take in other tokens (Chan, Golub and LeVeque 1983)."""
        self.counts.add(other.counts)
        if other.n == 0:
            return
        n = self.n + other.n
        delta = other.mean - self.mean
        weight = self.n * other.n / n
        self.squares = self.squares + other.squares + delta * delta * weight
        self.cross = self.cross + other.cross + np.array([delta[i] * delta[j] for i, j in CROSS]) * weight
        self.mean = self.mean + delta * (other.n / n)
        self.total = self.total + other.total
        self.largest = np.maximum(self.largest, other.largest)
        self.n = n


class Tokens(NamedTuple):
    """Flat per-token arrays that spans point into (see ``tokens_of``). plain: all log-probabilities lie between LOWEST and 0,
    excluded. missing: True where the log-probability is null (None: nowhere);
    sampled: the sampled mask's flat values (None: no sequence has one)."""

    logprobs: Array
    plain: bool
    missing: Array | None
    sampled: Array | None


def tokens_of(logprobs: Array, missing: Array | None, sampled: Array | None) -> Tokens:
    """Tokens with what holds for all of their log-probabilities worked out once."""
    plain = len(logprobs) > 0 and bool(logprobs.min() > LOWEST) and bool(logprobs.max() < 0.0)
    return Tokens(logprobs, plain, missing, sampled)


class SpanSums(NamedTuple):
    """Per span: tokens used and sums of |d|, d and exp(d) - 1 - d, all float64."""

    n: Array
    size: Array
    d: Array
    k3: Array


class Measured(NamedTuple):
    """Statistics of some spans. sizes, differences: |d| and |t| of the tokens used, float32, in order, and their histograms
    (``quantiles.count``)."""

    sums: Sums
    spans: SpanSums
    sizes: Array
    differences: Array
    size_histogram: Array
    difference_histogram: Array


class _Piece(NamedTuple):
    """The part of a block in consecutive spans: the first span, and for each the part's first token in the block, its length and its
    first token within the span."""

    first: int
    place: Array
    length: Array
    offset: Array


class _Block(NamedTuple):
    """The usable tokens of a block: x, y, d; the span of each (relative to the first; None where all tokens are used)."""

    x: Array
    y: Array
    d: Array
    owner: Array | None


@np.errstate(over="ignore", under="ignore", invalid="ignore")  # NaN is counted, and a metric that overflows is withheld
def measure(tokens: Tokens, a_start: Array, b_start: Array, mask_start: Array, length: Array) -> Measured:
    """Statistics of spans: span i is logprobs[a_start[i]:][:length[i]] (rollout) beside logprobs[b_start[i]:][:length[i]] (trainer).

    mask_start[i]: where the span's part of the sampled mask begins, -1 where the policy sampled every token. Lengths must be
    positive. Null, NaN and infinite values and tokens that were not sampled are counted and left out of every statistic.
    """
    stop = np.cumsum(length)
    total = int(stop[-1]) if len(stop) else 0
    spans = SpanSums(*(np.zeros(len(length)) for _ in SpanSums._fields))
    sizes, differences = np.empty(total, np.float32), np.empty(total, np.float32)
    size_histogram, difference_histogram = np.zeros(BINS, np.int64), np.zeros(BINS, np.int64)
    sums, used = Sums(), 0
    work = np.empty((10, BLOCK))
    for low in range(0, total, BLOCK):
        high = min(low + BLOCK, total)
        first, last = (int(place) for place in np.searchsorted(stop, [low, high - 1], side="right"))
        begin = stop[first : last + 1] - length[first : last + 1]
        place = np.maximum(begin, low)
        piece = _Piece(first, place - low, np.minimum(stop[first : last + 1], high) - place, place - begin)
        block = Sums()
        usable = _usable(tokens, piece, (a_start, b_start, mask_start), block.counts, work)
        n = len(usable.d)
        if n:
            _sum(usable, piece, block, spans, work, tokens.plain)
            for row, values, histogram in ((SIZE, sizes, size_histogram), (DIFF, differences, difference_histogram)):
                values[used : used + n] = work[row, :n]
                count(values[used : used + n], histogram)
            if size_histogram[0] or work[SIZE, :n].min() == 0.0:
                block.counts.equal_bits = n - int(np.count_nonzero(work[SIZE, :n]))
            sums.add(_centred(block, work, n))
            used += n
        else:
            sums.add(block)
    return Measured(sums, spans, sizes[:used], differences[:used], size_histogram, difference_histogram)


def _usable(tokens: Tokens, piece: _Piece, starts: tuple[Array, Array, Array], counts: Counts, work: Array) -> _Block:
    """Gather a block into work[X], work[_Y] and work[D], count what can't be used, and close the gaps."""
    n = int(piece.length.sum())
    here = slice(piece.first, piece.first + len(piece.length))
    a, b, mask = (start[here] for start in starts)
    x, y, d = work[X, :n], work[_Y, :n], work[D, :n]
    _gather(tokens.logprobs, a + piece.offset, piece, x)
    _gather(tokens.logprobs, b + piece.offset, piece, y)
    keep: Array | None = None
    if tokens.sampled is not None and (mask >= 0).any():
        keep = np.ones(n, bool)
        for i in np.flatnonzero(mask >= 0).tolist():
            at = int(mask[i] + piece.offset[i])
            keep[piece.place[i] : piece.place[i] + piece.length[i]] = tokens.sampled[at : at + piece.length[i]]
        counts.not_sampled = n - int(keep.sum())
    if tokens.missing is not None:
        missing = np.empty((2, n), bool)
        _gather(tokens.missing, a + piece.offset, piece, missing[0])
        _gather(tokens.missing, b + piece.offset, piece, missing[1])
        if missing.any():
            keep = np.ones(n, bool) if keep is None else keep
            counts.missing = [int((missing[0] & keep).sum()), int((missing[1] & keep).sum())]
            keep &= ~(missing[0] | missing[1])
    np.subtract(y, x, out=d)
    if not math.isfinite(np.dot(d, d)):
        keep = np.ones(n, bool) if keep is None else keep
        finite = np.isfinite(x), np.isfinite(y)
        counts.nonfinite = [int((keep & ~finite[0]).sum()), int((keep & ~finite[1]).sum())]
        keep &= finite[0] & finite[1]
    if keep is None or keep.all():
        return _Block(x, y, d, None)
    m = int(keep.sum())
    owner = np.repeat(np.arange(len(piece.length)), piece.length)[keep]
    for row in (X, _Y, D):
        work[row, :m] = work[row, :n][keep]
    return _Block(work[X, :m], work[_Y, :m], work[D, :m], owner)


def _gather(values: Array, start: Array, piece: _Piece, out: Array) -> None:
    """out = the pieces values[start[i]:][:length[i]], one after the other."""
    if len(start) <= FEW_SPANS:
        for at, place, length in zip(start.tolist(), piece.place.tolist(), piece.length.tolist(), strict=True):
            out[place : place + length] = values[at : at + length]
    else:
        out[:] = values[np.arange(len(out)) + np.repeat(start - piece.place, piece.length)]


def _sum(usable: _Block, piece: _Piece, block: Sums, spans: SpanSums, work: Array, plain: bool) -> None:
    """Fill work[:6] and the sums, counts and per-span sums of a block."""
    x, y, d, owner = usable
    n = len(d)
    p, size, diff, t, k3, w1 = (work[row, :n] for row in (P, SIZE, DIFF, T, _K3, _W1))
    np.abs(d, out=size)
    np.exp(x, out=p)
    _series(d, k3, work[_SCRATCH, :n])
    np.add(d, k3, out=w1)
    large = np.flatnonzero(size >= SERIES_BELOW)
    if len(large):
        exact = np.expm1(d[large])
        w1[large] = exact
        k3[large] = exact - d[large]
    np.multiply(p, w1, out=t)
    if not plain:
        if x.min() <= LOWEST:  # exp(x) may be 0 where exp(y) is not
            np.subtract(np.exp(y), p, out=t)
        _count_unusual(x, y, block.counts)
    np.abs(t, out=diff)
    here = slice(piece.first, piece.first + len(piece.length))
    spans.n[here] += piece.length if owner is None else np.bincount(owner, minlength=len(piece.length))
    totals = []
    for target, values in zip(spans[1:], (size, d, k3), strict=True):
        by_span = _by_span(values, piece, owner)
        target[here] += by_span
        totals.append(by_span.sum())
    block.mean[SIZE], block.mean[D] = totals[0] / n, totals[1] / n
    block.total = np.array([totals[2], np.dot(w1, w1)])
    block.n = n
    block.largest = np.array([size.max(), diff.max()])
    if block.largest[0] > LOG_2:
        block.counts.beyond_2 = int(np.count_nonzero(size > LOG_2))


def _series(d: Array, k3: Array, scratch: Array) -> None:
    """k3 = exp(d) - 1 - d by its series, d²(1/2! + d(1/3! + ... + d/7!))."""
    np.multiply(d, 1 / 5040, out=k3)
    for divisor in (720, 120, 24, 6, 2):
        np.add(k3, 1 / divisor, out=k3)
        if divisor != 2:
            np.multiply(k3, d, out=k3)
    np.multiply(d, d, out=scratch)
    np.multiply(k3, scratch, out=k3)


def _by_span(values: Array, piece: _Piece, owner: Array | None) -> Array:
    """Sums of a block's values by span."""
    if owner is None:
        return np.add.reduceat(values, piece.place)
    return np.bincount(owner, weights=values, minlength=len(piece.length))


def _count_unusual(x: Array, y: Array, counts: Counts) -> None:
    """Count log-probabilities of 0 and above."""
    for side, (mine, other) in enumerate(((x, y), (y, x))):
        if mine.max() >= 0.0:
            zero = mine == 0.0
            counts.zero[side] = int(np.count_nonzero(zero))
            counts.bad_zero[side] = int(np.count_nonzero(other[zero] < CERTAIN))
            counts.positive[side] = int(np.count_nonzero(mine > ABOVE_ONE))


def _centred(block: Sums, work: Array, n: int) -> Sums:
    """Add the centred moments of work[:6]. Values that vary little beside their mean are centred first, in place."""
    rows = work[:6, :n]
    for row in (P, X, DIFF, T):  # those of |d| and d follow from the sums by span
        block.mean[row] = rows[row].sum() / n
    squares = {row: np.dot(rows[row], rows[row]) for row in (P, X, D, T)}
    block.squares = np.array([squares[row] for row in (P, X, D, T, T, D)]) - n * block.mean * block.mean
    block.cross = np.array([np.dot(rows[i], rows[j]) - n * block.mean[i] * block.mean[j] for i, j in CROSS])
    if (block.squares < UNCENTRED * n * block.mean * block.mean).any():
        rows -= block.mean[:, None]
        block.squares = np.array([np.dot(values, values) for values in rows])
        block.cross = np.array([np.dot(rows[i], rows[j]) for i, j in CROSS])
    return block
