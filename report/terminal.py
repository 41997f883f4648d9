"""The report on a terminal: the verdict first, then what it rests on.

Everything is said in words; colour only repeats it. Numbers are never cut or wrapped: a table that is wider than the page
loses its least important columns, and says which. Lines have no trailing blanks, commands can be copied as they stand.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text
from rlaudit.analyzers.results import Report
from rlaudit.findings import Finding
from rlaudit.report import sections
from rlaudit.report.next_steps import commands
from rlaudit.report.text import place, query_command, with_unit

STATUS_STYLES = {
    "OK": "bold white on green",
    "WARN": "bold black on yellow",
    "FAIL": "bold white on red",
    "INCONCLUSIVE": "bold white on magenta",
}
SEVERITY_STYLES = {"fail": "bold red", "warn": "bold yellow", "info": "bold cyan"}
INDENT = 2
GAP = 2
NO_BREAK = "\N{NO-BREAK SPACE}"
NUMBER_AND_UNIT = re.compile(r"(?<=\d) (?=\S)")


class Page:
    """A console with the few shapes that the report is made of."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def line(self, *parts: str | tuple[str, str]) -> None:
        """One line of text and (text, style) parts, left as it is however long."""
        self.console.print(Text.assemble(*parts), soft_wrap=True)

    def heading(self, title: str) -> None:
        self.line()
        self.line((title, "bold"))

    def wrapped(self, text: str, *, label: str = "", indent: int = INDENT, label_width: int | None = None, style: str = "") -> None:
        """``text`` broken at the page's width beside ``label``; a number stays with what follows it."""
        column = indent + (label_width if label_width is not None else len(label))
        kept = NUMBER_AND_UNIT.sub(NO_BREAK, text)
        width = max(self.console.width - column, 20)
        broken = [part for line in kept.split("\n") for part in _broken(line, width)]
        for number, part in enumerate(broken):
            shown = label if number == 0 else ""
            self.line((" " * indent + shown.ljust(column - indent), "dim"), (part.replace(NO_BREAK, " "), style))

    def pairs(self, pairs: Sequence[tuple[str, str]], *, indent: int = INDENT, label_width: int = 0) -> None:
        """Labels and texts in two columns."""
        width = max([label_width, *(len(label) + GAP for label, _ in pairs)])
        for label, text in pairs:
            self.wrapped(text, label=label, indent=indent, label_width=width)

    def bullets(self, lines: Sequence[str]) -> None:
        for text in lines:
            self.wrapped(text, label="- ")

    def command(self, command: str, *, indent: int = INDENT) -> None:
        """A command, never broken by us."""
        for text in command.splitlines():
            self.line((" " * indent + text, "cyan"))

    def grid(self, grid: sections.Grid) -> None:
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


def render(report: Report, console: Console) -> None:
    """Print ``report`` on ``console``, whose width and colours it respects."""
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
        page.heading("The same numbers by SQL")
        for title, sql in report.queries.items():
            page.wrapped(title)
            page.command(query_command(report.run, sql), indent=2 * INDENT)
    page.heading("Next")
    for command, reason in commands(report):
        page.wrapped(f"{reason}:", style="dim")
        page.command(command, indent=2 * INDENT)


def _verdict(report: Report, page: Page) -> None:
    status = report.verdict.status
    shown = f" {status} " if page.console.color_system else status
    page.line((shown, STATUS_STYLES[status]), "  ", (report.verdict.sentence, "bold"))
    page.bullets(report.verdict.reasons)


def _finding(report: Report, finding: Finding, page: Page) -> None:
    page.line()
    page.line((finding.severity.upper(), SEVERITY_STYLES[finding.severity]), "  ", (finding.code, "bold"), "  ", finding.title)
    label_width = len("evidence") + GAP
    if finding.where:
        page.pairs([("where", place(finding.where))], label_width=label_width)
    shown = [f"{evidence.label}: {with_unit(evidence.value, evidence.unit)}" for evidence in finding.evidence]
    page.pairs([("evidence" if first else "", text) for first, text in _marked(shown)], label_width=label_width)
    if finding.sql is not None:
        page.wrapped("", label="sql")
        page.command(query_command(report.run, finding.sql), indent=2 * INDENT)
    page.pairs([("next" if first else "", text) for first, text in _marked(finding.next)], label_width=label_width)


def _marked(lines: Sequence[str]) -> list[tuple[bool, str]]:
    return [(index == 0, line) for index, line in enumerate(lines)]
