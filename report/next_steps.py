"""The three commands that a report ends with: what a reader would most likely type next."""

from __future__ import annotations

import shlex

from rlaudit.analyzers.results import Report
from rlaudit.report.text import query_command

WORST_TOKENS = (
    "select step, sequence_id, position, token_id, rollout_logp, trainer_logp, delta from tokens "
    "where is_sampled and delta is not null order by abs(delta) desc limit 20"
)


def commands(report: Report) -> list[tuple[str, str]]:
    """Commands with what each is for."""
    run = shlex.quote(report.run)
    shown = next((finding for finding in report.findings if finding.sql and finding.severity != "info"), None)
    if shown is not None and shown.sql is not None:
        first = (query_command(report.run, shown.sql), f"the evidence for {shown.code}")
    elif report.coverage.compared_tokens:
        first = (query_command(report.run, WORST_TOKENS), "the tokens on which rollout and trainer differ most")
    else:
        first = (f"rlaudit info {run}", "what was captured, and which hooks attached")
    return [
        first,
        (f"rlaudit shell {run}", "ask your own questions in SQL; .tables lists what there is"),
        (f"rlaudit report {run} --format markdown --output report.md", "this report for a pull request"),
    ]
