"""The coverage table that ``rlaudit capture`` ends with: what was seen, hooked, recorded and joined, and what it cost."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rlaudit.analyzers.results import CaptureSummary


def render_captured(summary: CaptureSummary, console: Console, shown_path: str) -> None:
    """Print ``summary``; ``shown_path`` is the run as the user would type it in the next command."""
    if summary.likely_reason is not None:
        console.print(
            Text.assemble(("rlaudit: NOTHING WAS CAPTURED.", "bold red"), f" Likely reason: {summary.likely_reason}."), soft_wrap=True
        )
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for label, text in _lines(summary):
        table.add_row(label, text)
    console.print(Text("rlaudit capture", style="bold"))
    console.print(table)
    if summary.likely_reason is None:
        console.print(Text.assemble("next      ", (f"rlaudit report {shown_path}", "bold")), soft_wrap=True)
    else:
        console.print(Text.assemble("next      ", ("rlaudit hooks", "bold"), "   what would attach in this environment"), soft_wrap=True)


def _lines(summary: CaptureSummary) -> list[tuple[str, str]]:
    hooked = sum(bool(p.hooks) for p in summary.processes)
    emitting = sum(p.emitting for p in summary.processes)
    lines = [("processes", f"{len(summary.processes)} seen, {hooked} hooked, {emitting} emitting")]
    if summary.unreached:
        lines.append(("", f"without rlaudit: {', '.join(summary.unreached)}"))
    for place, hook in enumerate(summary.hooks):
        failures = f", {hook.failures:,} failures inside rlaudit" if hook.failures else ""
        state = f"attached in {hook.processes}, {hook.fired:,} calls{failures}" if hook.state == "attached" else f"REFUSED: {hook.reason}"
        lines.append(("hooks" if place == 0 else "", f"{hook.adapter} ({hook.distribution} {hook.version or 'unknown version'}): {state}"))
    rows = [f"{name} {count:,}" for name, count in summary.rows.items() if count]
    lines.append(("rows", f"{', '.join(rows) or 'none'}" + (f" in {summary.steps:,} steps" if summary.steps else "")))
    lines.extend(_join_lines(summary))
    for place, (table_name, reasons) in enumerate(summary.dropped.items()):
        lines.append(
            ("skipped" if place == 0 else "", f"{table_name}: " + ", ".join(f"{count:,} {reason}" for reason, count in reasons.items()))
        )
    for reason in summary.stopped:
        lines.append(("stopped", reason))
    lines.append(("size", " + ".join(f"{name} {_size(count)}" for name, count in summary.bytes.items() if count) or "0 B"))
    lines.extend(_cost(summary))
    for process in summary.processes:
        for label, (count, message) in process.failures.items():
            lines.append(("failed", f"{label}: {count:,} times, first: {message}"))
    return lines


def _join_lines(summary: CaptureSummary) -> list[tuple[str, str]]:
    with_rollout, trained = summary.joined_trainer
    with_trainer, rollouts = summary.joined_rollout
    if not trained and not rollouts:
        return []
    lines = [
        ("joins", f"{with_rollout:,} of {trained:,} trainer sequences have a rollout{_share(with_rollout, trained)}"),
        ("", f"{with_trainer:,} of {rollouts:,} training rollouts have trainer log-probabilities{_share(with_trainer, rollouts)}"),
    ]
    if summary.not_consumed:
        lines.append(("", f"{summary.not_consumed:,} rollouts of other phases"))
    return lines


def _share(part: int, whole: int) -> str:
    return f" ({part / whole:.1%})" if whole else ""


def _cost(summary: CaptureSummary) -> list[tuple[str, str]]:
    balances = [p for p in summary.processes if p.emitting and p.process_seconds]
    if not balances:
        return []
    hooks = sum(p.hook_seconds or 0.0 for p in balances)
    writer = sum(p.writer_seconds or 0.0 for p in balances)
    total = sum(p.process_seconds or 0.0 for p in balances)
    return [("cost", f"{hooks:.2f} s in hooks + {writer:.2f} s in the writer = {(hooks + writer) / total:.1%} of {total:.1f} s CPU")]


def _size(count: int) -> str:
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"
