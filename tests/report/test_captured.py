"""The table that a capture ends with: what was seen, joined, lost, and what it cost."""

from __future__ import annotations

import io

from rich.console import Console

from rlaudit.analyzers.results import CapturedHook, CapturedProcess, CaptureSummary, RankGroup
from rlaudit.report.captured import render_captured


def process(rows: dict[str, int], failures: dict[str, tuple[int, str]] | None = None) -> CapturedProcess:
    return CapturedProcess("host-1-0", 0, "train.py", "python", ("trl",), rows, {}, {}, failures or {}, 0.5, 1.5, 100.0)


def summary(**changes: object) -> CaptureSummary:
    facts: dict[str, object] = {
        "run": "/runs/x",
        "processes": (process({"sequences": 20000}),),
        "unreached": (),
        "hooks": (CapturedHook("TRL GRPO", "trl", "1.16.0", "attached", 1, 12345, 0),),
        "rows": {"sequences": 20000, "scores": 0},
        "bytes": {"sequences": 1_240_000},
        "steps": 12,
        "joined_trainer": (19999, 20000),
        "joined_rollout": (20000, 20000),
        "not_consumed": 0,
        "dropped": {},
        "stopped": (),
        "seconds": 60.0,
        "likely_reason": None,
    }
    return CaptureSummary(**{**facts, **changes})  # type: ignore[arg-type]


def printed(captured: CaptureSummary) -> str:
    file = io.StringIO()
    render_captured(captured, Console(file=file, width=100, highlight=False), "runs/my run")
    return file.getvalue()


def test_one_row_missed_of_twenty_thousand_is_not_100_percent() -> None:
    text = printed(summary())
    assert "19,999 of 20,000 trainer sequences have a rollout, 99.995 %" in text
    assert "20,000 of 20,000 training rollouts have trainer log-probabilities, 100 %" in text


def test_the_cost_is_a_share_of_the_processes_cpu_time() -> None:
    # (0.5 + 1.5) of 100 seconds
    assert "0.50 s in hooks + 1.50 s in the writer = 2 % of 100.0 s CPU" in printed(summary())


def test_the_next_command_can_be_pasted() -> None:
    assert "rlaudit report 'runs/my run'" in printed(summary())


def test_nothing_captured_is_said_loudly_with_the_reason() -> None:
    text = printed(summary(processes=(), rows={}, bytes={}, hooks=(), likely_reason="trl 9 is not supported"))
    assert "NOTHING WAS CAPTURED. Likely reason: trl 9 is not supported." in text
    assert "rlaudit hooks" in text
    assert "rlaudit report" not in text


def test_refused_hooks_lost_rows_and_own_failures_are_all_named() -> None:
    text = printed(
        summary(
            processes=(process({"sequences": 1}, {"TRL GRPO: step": (3, "KeyError: 'x'")}),),
            unreached=("/opt/engine/bin/python",),
            hooks=(CapturedHook("TRL GRPO", "trl", "9.0", "refused", 1, 0, 0, "trl 9.0 is not supported"),),
            dropped={"routing": {"queue full": 1200}},
            stopped=("the disk is full",),
        )
    )
    for expected in (
        "REFUSED, trl 9.0 is not supported",
        "routing: 1,200 queue full",
        "the disk is full",
        "TRL GRPO: step: 3 times, first: KeyError: 'x'",
        "/opt/engine/bin/python has no rlaudit installed",
    ):
        assert expected in text


def test_ranks_that_were_never_seen_stand_out() -> None:
    whole = RankGroup(0, "n0:29500", 8, tuple(range(8)), (0, 4), 2, ("n0", "n1"))
    text = printed(summary(ranks=(whole,)))
    assert "8 expected, 8 seen, 2 emitting on 2 of 2 hosts" in text
    assert "NEVER SEEN" not in text
    part = RankGroup(1, "n0:29500", 8, (0, 1, 2, 3, 5), (0,), None, ("n0",))
    text = printed(summary(ranks=(part,)))
    assert "8 expected, 5 seen, 1 emitting on 1 hosts (attempt 1)" in text
    assert "NEVER SEEN: rank 4, 6-7; nothing of them is in the run" in text


def test_a_single_process_has_no_line_of_ranks() -> None:
    assert "ranks" not in printed(summary(ranks=(RankGroup(0, ":", 1, (0,), (0,), 1, ("n0",)),)))
