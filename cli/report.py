"""``rlaudit report``: verdict, findings and metrics of a run."""

from __future__ import annotations

import sys
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from rlaudit.cli.output import text_output

if TYPE_CHECKING:
    from rlaudit.analyzers.results import Report


class Format(str, Enum):
    """Output formats of a report."""

    terminal = "terminal"
    json = "json"
    markdown = "markdown"


def command(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run's folder.", show_default=False)],
    format: Annotated[Format, typer.Option("--format", "-f", help="How to print it.")] = Format.terminal,
    sql: Annotated[bool, typer.Option("--sql", help="Print the queries that recompute the numbers too (terminal).")] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write to FILE instead of standard output.")] = None,
) -> None:
    """Audit a run: verdict first, then findings with their evidence, coverage and metrics by step.

    The exit status is 0 whatever the verdict is. json follows docs/report.schema.json and markdown can be pasted into a
    pull request.

    \b
    Examples:
      rlaudit report runs/demo
      rlaudit report runs/demo --format json --output report.json
    """
    from rlaudit.analyzers.audit import build_report
    from rlaudit.analyzers.compiled import kernels_cached
    from rlaudit.analyzers.measured import needs_kernels
    from rlaudit.run import Run

    opened = Run.open(run)
    if needs_kernels(opened) and not kernels_cached():
        print("rlaudit: compiling the measuring kernels, once on this machine; this takes some seconds", file=sys.stderr)
    # Commands in the report name the run as it was typed, which is what can be typed again.
    report = replace(build_report(opened), run=run)
    with text_output(output) as file:
        _render(report, format, file, sql)


def _render(report: Report, format: Format, file: IO[str], sql: bool) -> None:
    if format is Format.json:
        from rlaudit.report import as_json

        file.write(as_json.render(report))
    elif format is Format.markdown:
        from rlaudit.report import markdown

        file.write(markdown.render(report))
    else:
        from rich.console import Console

        from rlaudit.report import terminal
        from rlaudit.report.page import WIDTH_IN_FILES, page_width

        terminal.render(report, Console(file=file, width=page_width() if file.isatty() else WIDTH_IN_FILES, highlight=False), with_sql=sql)
