"""``rlaudit hooks``: what capture would attach to in this environment."""

from __future__ import annotations

import json
from enum import Enum
from typing import Annotated

import typer


class Format(str, Enum):
    """Output formats."""

    table = "table"
    json = "json"


def command(format: Annotated[Format, typer.Option("--format", "-f", help="How to print it.")] = Format.table) -> None:
    """List the adapters, and say for each whether it would attach to what is installed here.

    Nothing is imported or started: versions come from the installed packages' metadata,
    signatures from their source.

    \b
    Example:
      rlaudit hooks
    """
    from rlaudit.capture.survey import survey

    rows = survey()
    if format is Format.json:
        typer.echo(json.dumps([row._asdict() for row in rows], indent=2))
        return
    from rich.console import Console

    from rlaudit.report.grid import Grid
    from rlaudit.report.page import Page, page_width

    cells = tuple((r.adapter, r.kind, r.distribution, r.installed or "not installed", r.tested, r.state) for r in rows)
    headings = ("adapter", "kind", "package", "installed", "supported", "state")
    notes = tuple(f"{r.adapter} refuses: {r.reason}." for r in rows if r.reason)
    grid = Grid("Adapters of this rlaudit, in this environment", headings, (False,) * len(headings), cells, notes)
    Page(Console(width=page_width(), highlight=False)).grid(grid)
