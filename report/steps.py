"""Which training steps and layers a report for people prints when there are too many to print them all."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

Row = TypeVar("Row")

MOST_ROWS = 24
EDGE = 3
"""Rows kept at either end."""


class Shortened(NamedTuple):
    """Positions to print, in order, and the sentence that says what was left out (None: nothing was)."""

    positions: list[int]
    note: str | None


def shorten(rows: Sequence[Row], worst: Callable[[Row], float | None], what: str, by: str, *, most: int = MOST_ROWS) -> Shortened:
    """The first and last three of ``rows`` and the worst ones between, ``most`` in all.

    worst: higher is worse; None ranks last. what: plural noun for the note ("steps"). by: what ``worst`` is, in words.
    """
    if len(rows) <= most:
        return Shortened(list(range(len(rows))), None)
    edges = set(range(EDGE)) | set(range(len(rows) - EDGE, len(rows)))
    middle = [i for i in range(len(rows)) if i not in edges]
    ranked = sorted(middle, key=lambda i: (_rank(worst(rows[i])), i))
    chosen = sorted(edges | set(ranked[: most - len(edges)]))
    note = (
        f"{len(chosen)} of {len(rows):,} {what} shown: the first and last {EDGE}, "
        f"and the {most - len(edges)} with the largest {by}; --format json has all."
    )
    return Shortened(chosen, note)


def _rank(value: float | None) -> float:
    """Sort key, smallest first: large values, NaN before them (it is worth a look), None at the end."""
    if value is None:
        return float("inf")
    return float("-inf") if math.isnan(value) else -value
