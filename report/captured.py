"""The coverage table that ``rlaudit capture`` ends with: what was seen, hooked, recorded and joined, and what it cost."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from rich.console import Console

from rlaudit.analyzers.results import CapturedHook, CaptureSummary, RankGroup
from rlaudit.report.page import Page
from rlaudit.report.text import of_total, percent, size, spans

Pairs = list[tuple[str, str]]


def render_captured(summary: CaptureSummary, console: Console, shown_path: str) -> None:
    """Print ``summary``; ``shown_path`` is the run as the user would type it in the next command."""
    page = Page(console)
    page.line(("rlaudit capture", "bold"))
    if summary.likely_reason is not None:
        page.line(("NOTHING WAS CAPTURED.", "bold red"), f" Likely reason: {summary.likely_reason}.")
    page.pairs(_lines(summary), label_width=LABEL_WIDTH)
    nothing = summary.likely_reason is not None
    command, reason = ("rlaudit hooks", "what would attach in this environment") if nothing else (_report(shown_path), "the verdict")
    page.line(" " * 2, ("next".ljust(LABEL_WIDTH), "dim"), (command, "bold cyan"), f"   {reason}")


LABEL_WIDTH = 12


def _report(path: str) -> str:
    return f"rlaudit report {shlex.quote(path)}"


def _lines(summary: CaptureSummary) -> Pairs:
    hooked = sum(bool(process.hooks) for process in summary.processes)
    emitting = sum(process.emitting for process in summary.processes)
    recorded = [f"{name} {count:,}" for name, count in summary.rows.items() if count]
    failures = [
        f"{label}: {count:,} times, first: {message}"
        for process in summary.processes
        for label, (count, message) in process.failures.items()
    ]
    return [
        ("processes", f"{len(summary.processes):,} seen, {hooked:,} hooked, {emitting:,} emitting"),
        *_labelled("ranks", (text for group in summary.ranks if group.expected > 1 for text in _ranks(group))),
        *_labelled("unreached", (f"{executable} has no rlaudit installed" for executable in summary.unreached)),
        *_labelled("hooks", map(_hook, summary.hooks)),
        ("rows", f"{', '.join(recorded) or 'none'}" + (f" in {summary.steps:,} steps" if summary.steps else "")),
        *_joins(summary),
        *_labelled("skipped", (f"{table}: {_reasons(reasons)}" for table, reasons in summary.dropped.items())),
        *_labelled("stopped", summary.stopped),
        ("size", " + ".join(f"{name} {size(count)}" for name, count in summary.bytes.items() if count) or "0 B"),
        *_cost(summary),
        *_labelled("failed", failures),
    ]


def _ranks(group: RankGroup) -> list[str]:
    of_hosts = f" of {group.expected_hosts:,}" if group.expected_hosts is not None else ""
    attempt = f" (attempt {group.attempt})" if group.attempt else ""
    found = f"{len(group.seen):,} seen, {len(group.emitting):,} emitting on {len(group.hosts):,}{of_hosts} hosts"
    lines = [f"{group.expected:,} expected, {found}{attempt}"]
    if group.missing:
        lines.append(f"NEVER SEEN: rank {spans(group.missing)}; nothing of them is in the run")
    return lines


def _labelled(label: str, texts: Iterable[str]) -> Pairs:
    return [(label if place == 0 else "", text) for place, text in enumerate(texts)]


def _hook(hook: CapturedHook) -> str:
    found = f"{hook.adapter} ({hook.distribution} {hook.version or 'of unknown version'})"
    if hook.state != "attached":
        return f"{found}: REFUSED, {hook.reason}"
    failures = f", {hook.failures:,} failures inside rlaudit" if hook.failures else ""
    return f"{found}: attached in {hook.processes:,}, {hook.fired:,} calls{failures}"


def _joins(summary: CaptureSummary) -> Pairs:
    if not (summary.joined_trainer[1] or summary.joined_rollout[1]):
        return []
    others = [f"{summary.not_consumed:,} rollouts of other phases"] if summary.not_consumed else []
    return _labelled(
        "joins",
        (
            of_total(*summary.joined_trainer, "trainer sequences have a rollout"),
            of_total(*summary.joined_rollout, "training rollouts have trainer log-probabilities"),
            *others,
        ),
    )


def _reasons(reasons: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {reason}" for reason, count in reasons.items())


def _cost(summary: CaptureSummary) -> Pairs:
    balances = [process for process in summary.processes if process.emitting and process.process_seconds]
    if not balances:
        return []
    hooks = sum(process.hook_seconds or 0.0 for process in balances)
    writer = sum(process.writer_seconds or 0.0 for process in balances)
    total = sum(process.process_seconds or 0.0 for process in balances)
    return [("cost", f"{hooks:.2f} s in hooks + {writer:.2f} s in the writer = {percent((hooks + writer) / total)} of {total:.1f} s CPU")]
