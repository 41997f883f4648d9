"""A table of text, and how it fits a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.cells import cell_len


@dataclass(frozen=True, slots=True)
class Grid:
    """A table of text.

    right: which columns align right. notes: sentences below it. optional: the columns that may be left out on a
    narrow page, least important first (indices into headings). Headings may have several lines.
    """

    title: str
    headings: tuple[str, ...]
    right: tuple[bool, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    optional: tuple[int, ...] = ()

    def fit(self, width: int, gap: int) -> tuple[Grid, list[str]]:
        """The grid without the optional columns that ``width`` characters have no room for, and their headings."""
        kept = list(range(len(self.headings)))
        dropped: list[int] = []
        for index in self.optional:
            if sum(self._width(i) + gap for i in kept) - gap <= width:
                break
            kept.remove(index)
            dropped.append(index)
        narrow = replace(
            self,
            headings=tuple(self.headings[i] for i in kept),
            right=tuple(self.right[i] for i in kept),
            rows=tuple(tuple(row[i] for i in kept) for row in self.rows),
            optional=(),
        )
        return narrow, [self.headings[i] for i in sorted(dropped)]

    def lines(self, gap: int) -> tuple[list[str], list[str]]:
        """Heading lines and row lines, columns ``gap`` spaces apart, without trailing blanks."""
        widths = [self._width(index) for index in range(len(self.headings))]
        split = [heading.split("\n") for heading in self.headings]
        height = max((len(parts) for parts in split), default=0)
        tops = [tuple(parts[i] if i < len(parts) else "" for parts in split) for i in range(height)]
        return [self._line(row, widths, gap) for row in tops], [self._line(row, widths, gap) for row in self.rows]

    def _line(self, cells: Sequence[str], widths: Sequence[int], gap: int) -> str:
        padded = (_pad(cell, width, right) for cell, width, right in zip(cells, widths, self.right, strict=True))
        return (" " * gap).join(padded).rstrip()

    def _width(self, index: int) -> int:
        heading = max(cell_len(line) for line in self.headings[index].split("\n"))
        return max([heading, *(cell_len(row[index]) for row in self.rows)])


def _pad(cell: str, width: int, right: bool) -> str:
    blanks = " " * (width - cell_len(cell))
    return blanks + cell if right else cell + blanks


def with_gaps(rows: Sequence[tuple[str, ...]], positions: Sequence[int]) -> tuple[tuple[str, ...], ...]:
    """``rows`` with a row of dots wherever ``positions`` skip some."""
    result: list[tuple[str, ...]] = []
    for index, row in enumerate(rows):
        if index and positions[index] != positions[index - 1] + 1:
            result.append(("…",) * len(row))
        result.append(row)
    return tuple(result)
