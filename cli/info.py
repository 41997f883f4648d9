"""``rlaudit info``: what a run is."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Mapping
from dataclasses import asdict
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlaudit.report.text import duration, size

if TYPE_CHECKING:
    from rlaudit.analyzers.results import CapturedProcess, CaptureSummary
    from rlaudit.cli.run_facts import TableFacts
    from rlaudit.report.grid import Grid
    from rlaudit.run import Run

MOST_PROCESSES = 12


class Format(str, Enum):
    """Output formats."""

    terminal = "terminal"
    json = "json"


def command(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run's folder.", show_default=False)],
    format: Annotated[Format, typer.Option("--format", "-f", help="How to print it.")] = Format.terminal,
) -> None:
    """Say what a run is: when and how it was captured, its tables, the processes and hooks, the versions.

    \b
    Example:
      rlaudit info runs/demo
    """
    from rlaudit.analyzers.capture_summary import summarise_capture
    from rlaudit.cli.run_facts import table_facts
    from rlaudit.run import Run

    opened = Run.open(run)
    tables, summary = table_facts(opened), summarise_capture(opened)
    if format is Format.json:
        from rlaudit.report.as_json import strict

        facts = {
            "path": opened.path,
            "manifest": json.loads(opened.manifest.to_json()),
            "tables": [asdict(table) for table in tables],
            "capture": asdict(summary),
            "foreign_files": opened.foreign,
            "unreadable": opened.torn,
        }
        typer.echo(json.dumps(strict(facts), indent=2, ensure_ascii=False, allow_nan=False))
    else:
        _print(opened, tables, summary)


def _print(run: Run, tables: tuple[TableFacts, ...], summary: CaptureSummary) -> None:
    from rich.console import Console

    from rlaudit.report.page import Page, page_width

    page = Page(Console(width=page_width(), highlight=False))
    manifest = json.loads(run.manifest.to_json())
    page.line((run.id, "bold"), f"  {run.path}")
    page.pairs([(label, text) for label, text in _run(manifest) if text])
    page.grid(_tables(tables))
    if summary.hooks:
        page.grid(_hooks(summary))
    else:
        page.heading("Hooks")
        page.wrapped("None attached: no process imported a framework or engine that rlaudit knows (rlaudit hooks lists them).")
    if summary.processes:
        page.grid(_processes(summary))
    if summary.dropped:
        page.heading("Rows not recorded")
        page.pairs([(table, ", ".join(f"{count:,} {why}" for why, count in reasons.items())) for table, reasons in summary.dropped.items()])
    for title, facts in (("Versions", manifest["packages"]), ("Settings", manifest["settings"]), ("Environment", manifest["environment"])):
        if facts:
            page.heading(title)
            page.pairs([(name, str(value)) for name, value in facts.items()])
    left_out = [f"{path}: not a segment, left alone" for path in run.foreign] + run.torn
    if left_out:
        page.heading("Files that were not read")
        page.bullets(left_out)


def _run(manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    options = {name: size(value) if name.endswith("_bytes") else value for name, value in manifest["options"].items() if value is not None}
    return [
        ("command", shlex.join(manifest["command"])),
        ("in", manifest["working_directory"] or ""),
        ("started", _when(manifest["started"])),
        ("ended", _ended(manifest)),
        ("attempts", f"{manifest['attempts']}" if manifest["attempts"] > 1 else ""),
        ("hosts", ", ".join(manifest["hosts"])),
        ("devices", ", ".join(manifest["devices"])),
        ("git", ", ".join(f"{name} {_plain(value)}" for name, value in manifest["git"].items())),
        ("options", ", ".join(f"{name} {_plain(value)}" for name, value in options.items())),
        ("written by", f"rlaudit {manifest['rlaudit_version'] or '(version not recorded)'}, run format {manifest['format_version']}"),
    ]


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return " ".join(str(item) for item in value) if isinstance(value, list) else str(value)


def _when(seconds: float | None) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(seconds)) if seconds is not None else ""


def _ended(manifest: Mapping[str, Any]) -> str:
    if manifest["ended"] is None:
        return "not recorded: the run is still going, or its launcher was killed"
    took = f" after {duration(manifest['ended'] - manifest['started'])}" if manifest["started"] is not None else ""
    status = manifest["exit_status"]
    if status is None:
        return f"{_when(manifest['ended'])}{took}"
    return f"{_when(manifest['ended'])}{took}, " + (f"exit status {status}" if status >= 0 else f"killed by signal {-status}")


def _tables(tables: tuple[TableFacts, ...]) -> Grid:
    from rlaudit.report.grid import Grid

    rows = [(t.name, f"{t.rows:,}", size(t.bytes), f"{t.files:,}", _steps(t)) for t in tables if t.rows]
    rows.append(("all", f"{sum(t.rows for t in tables):,}", size(sum(t.bytes for t in tables)), f"{sum(t.files for t in tables):,}", ""))
    empty = [t.name for t in tables if not t.rows]
    notes = (f"Without rows: {', '.join(empty)}.",) if empty else ()
    return Grid("Tables", ("table", "rows", "on disk", "files", "training steps"), (False, True, True, True, False), tuple(rows), notes)


def _steps(table: TableFacts) -> str:
    if table.first_step is None or table.last_step is None or table.steps is None:
        return ""
    if table.first_step == table.last_step:
        return str(table.first_step)
    span = table.last_step - table.first_step + 1
    return f"{table.first_step}–{table.last_step}" + (f" ({table.steps:,} of {span:,})" if table.steps != span else "")


def _hooks(summary: CaptureSummary) -> Grid:
    from rlaudit.report.grid import Grid

    rows = tuple(
        (
            h.adapter,
            h.state,
            f"{h.distribution} {h.version or '(version unknown)'}",
            f"{h.processes:,}",
            f"{h.fired:,}",
            f"{h.failures:,}",
            h.reason or "",
        )
        for h in summary.hooks
    )
    headings = ("hook", "state", "found", "processes", "calls", "failures", "reason")
    return Grid("Hooks", headings, (False, False, False, True, True, True, False), rows)


def _processes(summary: CaptureSummary) -> Grid:
    from rlaudit.report.grid import Grid

    by_rows = sorted(summary.processes, key=lambda process: -sum(process.rows.values()))

    def cells(process: CapturedProcess) -> tuple[str, ...]:
        seconds = (process.hook_seconds, process.writer_seconds, process.process_seconds)
        times = (f"{value:.2f} s" if value is not None else "" for value in seconds)
        rank = str(process.rank) if process.rank is not None else ""
        return (process.process, rank, f"{sum(process.rows.values()):,}", *times, process.program)

    left = len(by_rows) - MOST_PROCESSES
    notes = (f"{left:,} more with fewer rows; --format json has all.",) if left > 0 else ()
    headings = ("process", "rank", "rows", "in hooks", "writer CPU", "all CPU", "program")
    right = (False, True, True, True, True, True, False)
    return Grid("Processes", headings, right, tuple(cells(process) for process in by_rows[:MOST_PROCESSES]), notes, (6, 1))
