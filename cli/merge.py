"""``rlaudit merge``: one run from those of several nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Runs of one job, one from each node.", show_default=False)],
    *,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="RUN", help="Folder of the merged run.", show_default=False)],
) -> None:
    """Put together what launchers on nodes without a shared disk captured of one job. The runs stay as they are.

    Launchers know that they belong together by RLAUDIT_JOB_ID, torchrun's rendezvous id or the scheduler's job id.

    \b
    Example:
      rlaudit merge node0/run node1/run --out runs/job
    """
    from rlaudit.merging import merge

    merged = merge(runs, out)
    typer.echo(f"{out}: {len(runs)} runs, hosts {', '.join(merged.manifest.hosts)}")
    typer.echo(f"next: rlaudit report {out}")
