"""The report on a terminal: the verdict first, then what it rests on.

Everything is said in words; colour only repeats it. A table that is wider than the page loses its least important columns,
and says which.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from rich.console import Console

from rlaudit.analyzers.results import Report
from rlaudit.findings import Finding
from rlaudit.report import sections
from rlaudit.report.next_steps import commands
from rlaudit.report.page import GAP, INDENT, Page
from rlaudit.report.text import place, query_command, with_unit

STATUS_STYLES = {
    "OK": "bold white on green",
    "WARN": "bold black on yellow",
    "FAIL": "bold white on red",
    "INCONCLUSIVE": "bold white on magenta",
}
SEVERITY_STYLES = {"fail": "bold red", "warn": "bold yellow", "info": "bold cyan"}


def render(report: Report, console: Console, *, with_sql: bool = False) -> None:
    """Print ``report`` on ``console``, whose width and colours it respects.

    with_sql: print the queries that recompute the numbers, which are long, instead of their titles.
    """
    page = Page(console)
    _verdict(report, page)
    for finding in report.findings:
        _finding(report, finding, page)
    if report.facts:
        page.heading("What was audited")
        page.pairs(list(report.facts.items()))
    page.heading("Coverage")
    page.pairs(sections.coverage(report))
    for grid in sections.grids(report):
        page.grid(grid)
    if report.withheld:
        page.heading("Not said, and why")
        page.bullets(report.withheld)
    if report.queries:
        _queries(report, page, with_sql)
    page.heading("Next")
    for command, reason in commands(report):
        page.wrapped(f"{reason}:", style="dim")
        page.command(command, indent=2 * INDENT)


def _verdict(report: Report, page: Page) -> None:
    status = report.verdict.status
    shown = f" {status} " if page.console.color_system else status
    page.wrapped(
        report.verdict.sentence, label=shown, label_width=len(shown) + GAP, indent=0, style="bold", label_style=STATUS_STYLES[status]
    )
    # Findings follow right below, in the words of their reasons: their codes are enough here.
    titles = {f"{finding.code}: {finding.title}": finding.code for finding in report.findings}
    codes = [titles[reason] for reason in report.verdict.reasons if reason in titles]
    if len(codes) > 1:
        page.wrapped(", ".join(codes), label="because of ")
    page.bullets([reason for reason in report.verdict.reasons if reason not in titles])


def _finding(report: Report, finding: Finding, page: Page) -> None:
    page.line()
    page.line((finding.severity.upper(), SEVERITY_STYLES[finding.severity]), "  ", (finding.code, "bold"))
    page.wrapped(finding.title)
    label_width = len("evidence") + GAP
    if finding.where:
        page.pairs([("where", place(finding.where))], label_width=label_width)
    shown = [f"{evidence.label}: {with_unit(evidence.value, evidence.unit)}" for evidence in finding.evidence]
    page.pairs([("evidence" if first else "", text) for first, text in _marked(shown)], label_width=label_width)
    if finding.sql is not None:
        page.wrapped("", label="sql")
        page.command(query_command(report.run, finding.sql), indent=2 * INDENT)
    page.pairs([("next" if first else "", text) for first, text in _marked(finding.next)], label_width=label_width)


def _queries(report: Report, page: Page, with_sql: bool) -> None:
    page.heading("The same numbers by SQL")
    if not with_sql:
        page.bullets(tuple(report.queries))
        page.command(f"rlaudit report {shlex.quote(report.run)} --sql", indent=2 * INDENT)
        return
    for title, sql in report.queries.items():
        page.wrapped(f"{title}:")
        page.command(query_command(report.run, sql), indent=2 * INDENT)


def _marked(lines: Sequence[str]) -> list[tuple[bool, str]]:
    return [(index == 0, line) for index, line in enumerate(lines)]
