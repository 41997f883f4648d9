"""Sufficient statistics of aligned log-probabilities: one pass over the tokens in blocks that stay in the processor's cache.

Notation: x = rollout log-probability, y = trainer log-probability, d = y - x, p = exp(x), q = exp(y), w = exp(d). All float64. Means and
second moments of a block are centred on the block's own mean; blocks, steps and whole runs merge by the pairwise update of Chan, Golub and LeVeque
(1983). exp(d) - 1 - d is a Taylor series for small |d|, which has no cancellation.

Whole-array operations of numpy rather than compiled loops: about as quick here (the exponential and reading dominate), without
a second for loading or ten for compiling.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

Array = Any

BLOCK = 8192
"""Tokens at a time: ten float64 buffers of 64 KiB."""
FEW_SPANS = 64
"""Blocks of no more spans than this are gathered slice by slice, others by index."""

P, Q, X, Y, SIZE, DIFF = range(6)
"""Rows of the moments: the two probabilities, the two log-probabilities, |d| and |q - p|."""
CROSS = ((P, Q), (X, Y))
D, K3, W1, W1_SQUARED = range(4)
"""Places of the sums: d, exp(d) - 1 - d, w - 1 and its square."""

LOG_2 = math.log(2.0)
SERIES_BELOW = 1 / 16
"""Below this |d| the series to d⁷/7! is used: relative error below 3e-12."""
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
    total: sums of the four quantities above; largest: max |d| and max |q - p|."""

    n: int = 0
    mean: Array = field(default_factory=lambda: np.zeros(6))
    squares: Array = field(default_factory=lambda: np.zeros(6))
    cross: Array = field(default_factory=lambda: np.zeros(2))
    total: Array = field(default_factory=lambda: np.zeros(4))
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
    """Flat per-token arrays that spans point into. missing: True where the log-probability is null (None: nowhere);
    sampled: the sampled mask's flat values (None: no sequence has one)."""

    logprobs: Array
    missing: Array | None
    sampled: Array | None


class SpanSums(NamedTuple):
    """Per span: tokens used and sums of |d|, d, exp(d) - 1 - d and w - 1, all float64."""

    n: Array
    size: Array
    d: Array
    k3: Array
    w1: Array


class Measured(NamedTuple):
    """Statistics of some spans. sizes, differences: |d| and |q - p| of the tokens used, float32, in order."""

    sums: Sums
    spans: SpanSums
    sizes: Array
    differences: Array


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


def measure(tokens: Tokens, a_start: Array, b_start: Array, mask_start: Array, length: Array) -> Measured:
    """Statistics of spans: span i is logprobs[a_start[i]:][:length[i]] (rollout) beside logprobs[b_start[i]:][:length[i]] (trainer).

    mask_start[i]: where the span's part of the sampled mask begins, -1 where the policy sampled every token. Lengths must be
    positive. Null, NaN and infinite values and tokens that were not sampled are counted and left out of every statistic.
    """
    stop = np.cumsum(length)
    total = int(stop[-1]) if len(stop) else 0
    spans = SpanSums(*(np.zeros(len(length)) for _ in SpanSums._fields))
    sizes, differences = np.empty(total, np.float32), np.empty(total, np.float32)
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
            _sum(usable, piece, block, spans, work)
            sizes[used : used + n], differences[used : used + n] = work[SIZE, :n], work[DIFF, :n]
            sums.add(_centred(block, work, n))
            used += n
        else:
            sums.add(block)
    return Measured(sums, spans, sizes[:used], differences[:used])


def _usable(tokens: Tokens, piece: _Piece, starts: tuple[Array, Array, Array], counts: Counts, work: Array) -> _Block:
    """Gather a block into work[X] and work[Y], count what can't be used, and close the gaps."""
    n = int(piece.length.sum())
    here = slice(piece.first, piece.first + len(piece.length))
    a, b, mask = (start[here] for start in starts)
    x, y, d = work[X, :n], work[Y, :n], work[6, :n]
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
    if not math.isfinite(d.sum()):
        keep = np.ones(n, bool) if keep is None else keep
        finite = np.isfinite(x), np.isfinite(y)
        counts.nonfinite = [int((keep & ~finite[0]).sum()), int((keep & ~finite[1]).sum())]
        keep &= finite[0] & finite[1]
    if keep is None or keep.all():
        return _Block(x, y, d, None)
    m = int(keep.sum())
    owner = np.repeat(np.arange(len(piece.length)), piece.length)[keep]
    for row in (X, Y, 6):
        work[row, :m] = work[row, :n][keep]
    return _Block(work[X, :m], work[Y, :m], work[6, :m], owner)


def _gather(values: Array, start: Array, piece: _Piece, out: Array) -> None:
    """out = the pieces values[start[i]:][:length[i]], one after the other."""
    if len(start) <= FEW_SPANS:
        for at, place, length in zip(start.tolist(), piece.place.tolist(), piece.length.tolist(), strict=True):
            out[place : place + length] = values[at : at + length]
    else:
        out[:] = values[np.arange(len(out)) + np.repeat(start - piece.place, piece.length)]


def _sum(usable: _Block, piece: _Piece, block: Sums, spans: SpanSums, work: Array) -> None:
    """Fill work[P..DIFF] and the sums, counts and per-span sums of a block."""
    x, y, d, owner = usable
    n = len(d)
    p, q, size, diff = work[P, :n], work[Q, :n], work[SIZE, :n], work[DIFF, :n]
    k3, w1, scratch = work[7, :n], work[8, :n], work[9, :n]
    np.abs(d, out=size)
    np.exp(x, out=p)
    _series(d, k3, scratch)
    np.add(d, k3, out=w1)
    np.multiply(p, w1, out=diff)
    np.add(p, diff, out=q)
    large = np.flatnonzero(size >= SERIES_BELOW)
    if len(large):
        w1[large] = np.expm1(d[large])
        k3[large] = w1[large] - d[large]
        q[large] = np.exp(y[large])
        diff[large] = q[large] - p[large]
    np.abs(diff, out=diff)
    by_span = [_by_span(values, piece, owner) for values in (size, d, k3, w1)]
    here = slice(piece.first, piece.first + len(piece.length))
    spans.n[here] += piece.length if owner is None else np.bincount(owner, minlength=len(piece.length))
    for target, values in zip(spans[1:], by_span, strict=True):
        target[here] += values
    block.n = n
    block.total = np.array([by_span[1].sum(), by_span[2].sum(), by_span[3].sum(), np.dot(w1, w1)])
    block.largest = np.array([size.max(), diff.max()])
    _count(x, y, size, block.counts)


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


def _count(x: Array, y: Array, size: Array, counts: Counts) -> None:
    counts.beyond_2 = int(np.count_nonzero(size > LOG_2))
    counts.equal_bits = len(size) - int(np.count_nonzero(size))
    if max(x.max(), y.max()) < 0.0:
        return
    for side, (mine, other) in enumerate(((x, y), (y, x))):
        zero = mine == 0.0
        counts.zero[side] = int(np.count_nonzero(zero))
        counts.bad_zero[side] = int(np.count_nonzero(other[zero] < CERTAIN))
        counts.positive[side] = int(np.count_nonzero(mine > ABOVE_ONE))


def _centred(block: Sums, work: Array, n: int) -> Sums:
    """Add the moments of work[P..DIFF], which are centred in place."""
    for row in range(6):
        values = work[row, :n]
        block.mean[row] = values.sum() / n
        values -= block.mean[row]
        block.squares[row] = np.dot(values, values)
    for place, (i, j) in enumerate(CROSS):
        block.cross[place] = np.dot(work[i, :n], work[j, :n])
    return block
