"""The Markdown report: pasteable, and what comes from a run never becomes markup."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from markdown_it import MarkdownIt

from rlaudit.report import markdown


def html(report: Any) -> str:
    return MarkdownIt("commonmark", {"html": True}).enable("table").render(markdown.render(report))


def test_it_starts_with_the_verdict(full_report: Any) -> None:
    lines = markdown.render(full_report).splitlines()
    assert lines[0].endswith("rlaudit: WARN")
    assert lines[2] == "**Routing differs between rollout and trainer**"


def test_every_table_has_as_many_cells_in_each_row_as_headings(full_report: Any) -> None:
    tables = re.findall(r"(?:^\|.*\|\n)+", markdown.render(full_report), flags=re.MULTILINE)
    assert len(tables) == 7
    for table in tables:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1


def test_long_tables_are_folded_and_short_ones_open(full_report: Any) -> None:
    text = markdown.render(full_report)
    assert "<details><summary>By training step</summary>" in text
    assert "#### Routed experts by layer" in text


def test_hostile_text_from_a_run_stays_text(full_report: Any) -> None:
    hostile = "<img src=x onerror=alert(1)> **bold** | `code` [a](http://b) \n# heading"
    report = dataclasses.replace(
        full_report,
        facts={"command": hostile},
        withheld=(hostile,),
        findings=(dataclasses.replace(full_report.findings[0], title=hostile, where={"sequence": hostile}),),
    )
    rendered = html(report)
    assert "<img" not in rendered
    assert "<strong>bold" not in rendered
    assert 'href="http://b"' not in rendered
    assert "<h1>heading" not in rendered
    assert rendered.count("&lt;img src=x onerror=alert(1)&gt; **bold** | `code` [a](http://b)") == 4


def test_sql_is_in_a_code_block_as_it_can_be_pasted(full_report: Any) -> None:
    sql = full_report.findings[0].sql
    assert f'```sh\nrlaudit query runs/demo "{sql}"\n```' in markdown.render(full_report)
