"""``rlaudit compact``: fewer, larger files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

AllHosts = Annotated[
    bool,
    typer.Option("--all-hosts", help="The run is over on every host: convert what processes of other hosts left open, too."),
]


def command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run's folder.", show_default=False)],
    *,
    all_hosts: AllHosts = False,
) -> None:
    """Turn what capture left unconverted into Parquet and merge small files, so that a run of many processes opens quickly.

    Nothing that a query sees changes, also while it is going on; a crash in between loses nothing.

    \b
    Example:
      rlaudit compact runs/first
    """
    from rlaudit.capture.conversion import convert_leftovers
    from rlaudit.compaction import compact
    from rlaudit.run import Run

    opened = Run.open(run)  # refuses what is no run before anything is touched
    convert_leftovers(Path(opened.path), all_hosts=all_hosts)
    done = compact(Path(opened.path))
    for table in done:
        typer.echo(f"{table.table}: {table.before:,} files became {table.after:,}")
    if not done:
        typer.echo("nothing to compact")
    left = len(list(Path(opened.path, "spool").glob("*.open")))
    if left:
        typer.echo(f"{left:,} files are still open in processes that run, or may run on other hosts (--all-hosts when they are over)")
