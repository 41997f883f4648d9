"""A console with the few shapes that reports on a terminal are made of.

Lines have no trailing blanks, numbers are never cut or wrapped, and commands can be copied as they stand.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import IO

from rich.console import Console
from rich.text import Text

from rlaudit.report.grid import Grid

INDENT = 2
GAP = 2
WIDTH_IN_FILES = 100
NARROWEST = 20
NO_BREAK = "\N{NO-BREAK SPACE}"
NUMBER_AND_UNIT = re.compile(r"(?<=\d) (?=\S)")


def page_width(stream: IO[str] | None = None) -> int:
    """Columns to lay a page out for: the terminal's (or COLUMNS), and 100 where ``stream`` (standard output) is a file or pipe."""
    if (stream or sys.stdout).isatty() or os.environ.get("COLUMNS", "").isdigit():
        return shutil.get_terminal_size().columns
    return WIDTH_IN_FILES


class Page:
    """Prints on ``console``, whose width and colours it respects."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def line(self, *parts: str | tuple[str, str]) -> None:
        """One line of text and (text, style) parts, left as it is however long."""
        text = Text.assemble(*parts)
        text.rstrip()
        self.console.print(text, soft_wrap=True)

    def heading(self, title: str) -> None:
        """A section's title after a blank line."""
        self.line()
        self.line((title, "bold"))

    def wrapped(
        self, text: str, *, label: str = "", indent: int = INDENT, label_width: int | None = None, style: str = "", label_style: str = "dim"
    ) -> None:
        """``text`` broken at the page's width beside ``label``; a number stays with what follows it."""
        width = label_width if label_width is not None else len(label)
        kept = NUMBER_AND_UNIT.sub(NO_BREAK, text)
        room = max(self.console.width - indent - width, NARROWEST)
        broken = [part for line in kept.split("\n") for part in _broken(line, room)]
        for number, part in enumerate(broken):
            shown = label if number == 0 else ""
            self.line(" " * indent, (shown, label_style), " " * (width - len(shown)), (part.replace(NO_BREAK, " "), style))

    def pairs(self, pairs: Sequence[tuple[str, str]], *, indent: int = INDENT, label_width: int = 0) -> None:
        """Labels and texts in two columns."""
        width = max([label_width, *(len(label) + GAP for label, _ in pairs)])
        for label, text in pairs:
            self.wrapped(text, label=label, indent=indent, label_width=width)

    def bullets(self, lines: Sequence[str]) -> None:
        """A list."""
        for text in lines:
            self.wrapped(text, label="- ")

    def command(self, command: str, *, indent: int = INDENT) -> None:
        """A command, never broken by us."""
        for text in command.splitlines():
            self.line((" " * indent + text, "cyan"))

    def grid(self, grid: Grid) -> None:
        """A table with its title and notes, without the columns that the page has no room for."""
        self.heading(grid.title)
        fitting, left_out = grid.fit(self.console.width - INDENT, GAP)
        headings, rows = fitting.lines(GAP)
        for text in headings:
            self.line((" " * INDENT + text, "dim"))
        for text in rows:
            self.line(" " * INDENT + text)
        for note in grid.notes:
            self.wrapped(note, style="dim")
        if left_out:
            names = ", ".join(heading.replace("\n", " ") for heading in left_out)
            self.wrapped(f"Left out at this width: {names}.", style="dim")


def _broken(line: str, width: int) -> list[str]:
    return textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False) or [""]
