"""``rlaudit import``: a run from what an engine logged by itself."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer


class Source(str, Enum):
    """What can be imported."""

    SGLANG_LOG = "sglang-log"


def command(
    source: Annotated[Source, typer.Argument(metavar="KIND", help="What to import: sglang-log.", show_default=False)],
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A log file, or a folder of *.log files.", show_default=False)],
    *,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="RUN", help="Folder of the new run.", show_default=False)],
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="The model's config.json, by which routed experts have a shape.")
    ] = None,
) -> None:
    """Make a run of calls that an engine logged, without capture.

    sglang-log: what SGLang writes with --log-requests --log-requests-level 3 --log-requests-format json --log-requests-target FOLDER.

    \b
    Example:
      rlaudit import sglang-log logs/ -o runs/served --config model/config.json
    """
    from rlaudit.capture.importers.sglang_log import import_sglang_log

    done = import_sglang_log(path, out, config)
    typer.echo(f"{out}: {done.requests} calls, {done.routing} with routed experts")
    for count, text in (
        (done.shortened, "calls left out: the log has not all their token ids (--log-requests-level 3 has)"),
        (done.damaged, "lines left out: they are no JSON"),
        (done.unshaped, "calls without their routed experts: --config names the model's config.json, which says their shape"),
    ):
        if count:
            typer.echo(f"{count} {text}")
    typer.echo(f"next: rlaudit info {out}")
