"""The report as Markdown, short enough to paste into a pull request; what is long is folded away."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from rlaudit.analyzers.results import Report
from rlaudit.findings import Finding
from rlaudit.report import sections
from rlaudit.report.grid import Grid
from rlaudit.report.next_steps import commands
from rlaudit.report.text import place, query_command, with_unit

MARKS = {"OK": "✅", "WARN": "⚠️", "FAIL": "❌", "INCONCLUSIVE": "❔"}
MARKUP = re.compile(r"[\\`*_\[\]#~|]")
FOLD_ABOVE = 6
"""Tables with more rows than this are folded."""


def render(report: Report) -> str:
    """The report as GitHub-flavoured Markdown that ends with a newline."""
    blocks = [_verdict(report)]
    blocks += [_finding(report, finding) for finding in report.findings]
    blocks.append("#### Coverage\n\n" + _list(f"{label}: {text}" for label, text in sections.coverage(report)))
    blocks += [_grid(grid) for grid in sections.grids(report)]
    if report.withheld:
        blocks.append("#### Not said, and why\n\n" + _list(report.withheld))
    if report.facts:
        blocks.append(_folded("What was audited", _list(f"{label}: {text}" for label, text in report.facts.items())))
    if report.queries:
        queries = "\n\n".join(f"{_escape(title)}\n\n{_code(query_command(report.run, sql), 'sh')}" for title, sql in report.queries.items())
        blocks.append(_folded("The same numbers by SQL", queries))
    blocks.append("#### Next\n\n" + _code("\n".join(f"# {reason}\n{command}" for command, reason in commands(report)[:2]), "sh"))
    blocks.append(f"<sub>rlaudit {_escape(report.rlaudit_version)}, {_span(report.run)}</sub>")
    return "\n\n".join(blocks) + "\n"


def _verdict(report: Report) -> str:
    verdict = report.verdict
    head = f"### {MARKS[verdict.status]} rlaudit: {verdict.status}\n\n**{_escape(verdict.sentence)}**"
    return head + ("\n\n" + _list(verdict.reasons) if verdict.reasons else "")


def _finding(report: Report, finding: Finding) -> str:
    lines = [f"#### {finding.severity.upper()} `{finding.code}`: {_escape(finding.title)}"]
    facts = [f"where: {place(finding.where)}"] if finding.where else []
    facts += [f"{evidence.label}: {with_unit(evidence.value, evidence.unit)}" for evidence in finding.evidence]
    if facts:
        lines.append(_list(facts))
    if finding.sql is not None:
        lines.append(_code(query_command(report.run, finding.sql), "sh"))
    if finding.next:
        lines.append("What to try:\n\n" + "\n".join(f"{index}. {_escape(text)}" for index, text in enumerate(finding.next, 1)))
    return "\n\n".join(lines)


def _grid(grid: Grid) -> str:
    headings = tuple(heading.replace("\n", " ") for heading in grid.headings)
    parts = [*([_table(headings, grid.right, grid.rows)] if headings else []), *(_escape(note) for note in grid.notes)]
    body = "\n\n".join(parts)
    return _folded(grid.title, body) if len(grid.rows) > FOLD_ABOVE else f"#### {grid.title}\n\n{body}"


def _table(headings: Sequence[str], right: Sequence[bool], rows: Sequence[Sequence[str]]) -> str:
    rule = ["--:" if aligned else ":--" for aligned in right]
    lines = [[_escape(heading) for heading in headings], rule, *([_escape(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _list(lines: Iterable[str]) -> str:
    return "\n".join(f"- {_escape(line)}" for line in lines)


def _code(text: str, language: str) -> str:
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{text}\n{fence}"


def _folded(title: str, body: str) -> str:
    return f"<details><summary>{_escape(title)}</summary>\n\n{body}\n\n</details>"


def _escape(text: str) -> str:
    """``text`` on one line without markup: what comes from a run can hold anything."""
    flat = " ".join(text.split("\n")).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return MARKUP.sub(r"\\\g<0>", flat)


def _span(text: str) -> str:
    """``text`` as a code span, whatever backticks it has."""
    fence = "`"
    while fence in text:
        fence += "`"
    pad = " " if "`" in text else ""
    return f"{fence}{pad}{text}{pad}{fence}"
