"""The views and macros that queries use, as their SQL files document them.

The comments at the head of each file are the one place where they are described:
``-- view: NAME``, ``-- description: TEXT``, ``-- column NAME (UNIT): TEXT`` and ``-- macro NAME(ARGUMENTS): TEXT``.
"""

from __future__ import annotations

import re
from typing import NamedTuple

HEAD = re.compile(r"-- (view|macros|description): (.+)")
COLUMN = re.compile(r"-- column (\w+)(?: \(([^)]*)\))?: (.+)")
MACRO = re.compile(r"-- macro (\w+\([^)]*\)): (.+)")


class ViewColumn(NamedTuple):
    """One documented column. unit: None where a value has none."""

    name: str
    unit: str | None
    description: str


class View(NamedTuple):
    """One documented view."""

    name: str
    description: str
    columns: tuple[ViewColumn, ...]


class Macro(NamedTuple):
    """One documented macro, for example ``k3(delta)``."""

    call: str
    description: str


def views() -> list[View]:
    """The views, in the order in which they build on each other."""
    return [view for text in _texts() if (view := _view(text)) is not None]


def macros() -> list[Macro]:
    """The macros, in the order of their files."""
    return [Macro(*match.groups()) for text in _texts() for line in text.splitlines() if (match := MACRO.fullmatch(line))]


def _texts() -> list[str]:
    from importlib import resources

    files = [file for file in resources.files("rlaudit.sql").iterdir() if file.name.endswith(".sql")]
    return [file.read_text(encoding="utf-8") for file in sorted(files, key=lambda file: file.name)]


def _view(text: str) -> View | None:
    heads: dict[str, str] = {}
    columns = []
    for line in text.splitlines():
        if match := HEAD.fullmatch(line):
            heads[match[1]] = match[2]
        elif match := COLUMN.fullmatch(line):
            columns.append(ViewColumn(match[1], match[2], match[3]))
    return View(heads["view"], heads["description"], tuple(columns)) if "view" in heads else None
