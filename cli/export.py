"""``rlaudit export``: a copy of a run that may be given away."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rlaudit.errors import BadOption


def command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run's folder.", show_default=False)],
    *,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="Folder of the copy.", show_default=False)],
    redact: Annotated[
        bool, typer.Option("--redact", help="Hash token ids, rename sequences and hosts, leave out commands, paths and environment.")
    ] = False,
) -> None:
    """Copy a run for somebody else, a vendor for example, without what says who, where and what was written.

    Log-probabilities, routing, masks, rewards, sampling parameters, policy counters, package versions and the framework's metrics
    stay, so that every finding can be reproduced on the copy. Token ids become hashes under a key that is thrown away.

    \b
    Example:
      rlaudit export runs/first --redact --out for-the-vendor
    """
    from rlaudit.redaction import export_redacted
    from rlaudit.run import Run

    if not redact:
        raise BadOption("say --redact: a plain copy of a run is a copy of its folder (cp -r)")
    exported = export_redacted(Run.open(run), out)
    typer.echo(f"{out}: redacted copy, id {exported.id}")
    typer.echo("look through it before you send it: names of metrics and package versions are kept as they were")
