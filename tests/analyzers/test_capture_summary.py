"""The coverage table of a run: rows as they are in the tables, balances as the processes last wrote them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rlaudit.analyzers.capture_summary import summarise_capture
from rlaudit.manifest import Manifest
from rlaudit.run import Run
from rlaudit.spool import Constant, Scalars, SpoolFile, encode_frame

FACTS = {"host": "n0", "rank": None, "process": "n0-9-0", "attempt": 0}


def run_with(folder: Path, events: list[dict[str, Any]], sequences: int = 0, **manifest: Any) -> Run:
    """A run of one process whose spool holds these events and that many sequences."""
    Manifest(run_id="r", **manifest).write(folder)
    spool = SpoolFile(folder / "spool", "n0-9-0", 1, FACTS)
    for event in events:
        columns = {"time": 1.0, "name": "process", **event, "detail": json.dumps(event.get("detail"))}
        spool.append(encode_frame("events", 1, {name: Constant(value) for name, value in columns.items()}))
    if sequences:
        names = Scalars([f"s{n}" for n in range(sequences)])
        spool.append(encode_frame("sequences", sequences, {"step": Constant(0), "sequence_id": names, "phase": Constant("train")}))
    spool.seal()
    return Run.open(folder)


def test_rows_are_counted_in_the_tables_not_in_what_a_killed_process_last_said(tmp_path: Path) -> None:
    beat = {"kind": "heartbeat", "detail": {"beat": 1, "rows": {"sequences": 2}}}
    summary = summarise_capture(run_with(tmp_path, [beat], sequences=5))
    assert summary.rows["sequences"] == 5
    assert [process.rows for process in summary.processes] == [{"sequences": 5}]


def test_the_last_balance_is_the_last_even_where_the_clock_was_set_back(tmp_path: Path) -> None:
    beats = [
        {"kind": "heartbeat", "time": when, "detail": {"beat": beat, "dropped": {"scores": {"queue full": lost}}}}
        for beat, when, lost in ((1, 1000.0, 1), (2, 10.0, 7))
    ]
    assert summarise_capture(run_with(tmp_path, beats)).dropped == {"scores": {"queue full": 7}}


def test_ranks_that_a_process_learnt_of_later_count(tmp_path: Path) -> None:
    events = [
        {"kind": "process_started", "detail": {"program": "train.py"}},
        {"kind": "heartbeat", "detail": {"beat": 1, "ranks": {"rank": 1, "world_size": 2, "job": ":"}}},
    ]
    (group,) = summarise_capture(run_with(tmp_path, events)).ranks
    assert (group.seen, group.missing) == ((1,), (0,))


def test_the_kill_switch_is_a_reason_for_an_empty_run(tmp_path: Path) -> None:
    Manifest(run_id="r", environment={"RLAUDIT_DISABLE": "1"}).write(tmp_path)
    assert "RLAUDIT_DISABLE=1" in (summarise_capture(Run.open(tmp_path)).likely_reason or "")
