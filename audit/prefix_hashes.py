"""Hashes of token lists by which prefixes and spans are compared without comparing tokens.

The hash of t₀ … t₍ₙ₋₁₎ is Σ mix(tᵢ)·Mⁱ modulo 2⁶⁴, M odd: prefix hashes come from one cumulative sum, hashes of two lists make that of
their concatenation, and a span's hash doesn't depend on where it lies (M has an inverse). Equal lists have equal hashes; different ones
of equal length are told apart but for chances of about 2⁻⁶⁰ a comparison.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rlaudit.lists import ListColumn

Array = Any
_MULTIPLIER = 0x5851F42D4C957F2D
_INVERSE = pow(_MULTIPLIER, -1, 1 << 64)


def _powers_of(base: int, count: int) -> Array:
    powers = np.full(count + 1, base, np.uint64)
    powers[0] = 1
    return np.multiply.accumulate(powers)


class Powers:
    """Powers of the multiplier and of its inverse, up to the longest list seen."""

    def __init__(self) -> None:
        self._up, self._down = _powers_of(_MULTIPLIER, 4096), _powers_of(_INVERSE, 4096)

    def _reach(self, longest: int) -> None:
        if longest >= len(self._up):
            size = 2 * longest
            self._up, self._down = _powers_of(_MULTIPLIER, size), _powers_of(_INVERSE, size)

    def up(self, exponent: Array) -> Array:
        """M to the given powers."""
        self._reach(int(exponent.max(initial=0)))
        return self._up[exponent]

    def down(self, exponent: Array) -> Array:
        """M⁻¹ to the given powers."""
        self._reach(int(exponent.max(initial=0)))
        return self._down[exponent]


def mix(values: Array) -> Array:
    """A bijection of uint64 that spreads every bit (splitmix64's finaliser)."""
    x = values.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


class Prefixes:
    """Prefix hashes of every row of a list column of token ids; a null row counts as empty.

    ``at(row, k)`` is the hash of the first k tokens. length: tokens of each row (0 where null).
    """

    def __init__(self, column: ListColumn, powers: Powers) -> None:
        self.length = column.length.clip(0)
        self._powers = powers
        self.first = np.cumsum(self.length) - self.length
        total = int(self.length.sum())
        position = np.arange(total) - np.repeat(self.first, self.length)
        values = column.values[np.repeat(column.start, self.length) + position]
        self._sums = np.zeros(total + 1, np.uint64)
        np.cumsum(mix(values.astype(np.int64)) * powers.up(position), out=self._sums[1:])

    def at(self, row: Array, count: Array) -> Array:
        """Hash of the first ``count`` tokens of ``row``."""
        return self._sums[self.first[row] + count] - self._sums[self.first[row]]

    def whole(self) -> Array:
        """Hash of every row."""
        return self.at(np.arange(len(self.length)), self.length)

    def span(self, row: Array, start: Array, count: Array) -> Array:
        """Hash of ``count`` tokens of ``row`` from ``start``, as if they were a list of their own."""
        place = self.first[row] + start
        return (self._sums[place + count] - self._sums[place]) * self._powers.down(start)


def concatenated(left: Array, left_length: Array, right: Array, powers: Powers) -> Array:
    """Hash of two lists one behind the other."""
    return left + powers.up(left_length) * right


def keyed(hashes: Array, length: Array) -> Array:
    """Hash and length as one key."""
    return mix(hashes ^ mix(length.astype(np.uint64)))
