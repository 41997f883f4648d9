"""Compaction: many small segments become few of useful size, without a moment at which a reader sees rows twice or not at all.

A process that crashes in between leaves a journal, by which readers know which files the new one replaces.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from rlaudit import schema
from rlaudit.run import JOURNAL_PREFIX, Run
from rlaudit.segments import Segment, SegmentWriter

TARGET_BYTES = 16 << 20
"""Segments below this size are merged, until the result has about this size."""


class Compacted(NamedTuple):
    """What compaction did to one table."""

    table: str
    before: int
    after: int


def compact(folder: Path) -> list[Compacted]:
    """Merge the small segments of the run in ``folder``; rows are ordered by step within a new segment.

    DamagedRun where a segment can't be read: nothing of its table is changed then. Spools are not touched.
    """
    for journal in folder.glob(f"*/{JOURNAL_PREFIX}*.json"):
        finish_journal(journal)  # of a compaction that was killed
    for left in folder.glob("*/.compacted-*.tmp"):
        left.unlink()
    run = Run.open(folder)
    done = []
    for table in schema.TABLES:
        segments = sorted((s for s in run.recorded(table.name) if s.path.startswith(run.path)), key=_place)
        after = len(segments)
        for number, group in enumerate(_groups(segments)):
            _replace(folder, run, table.name, group, number)
            after -= len(group) - 1
        if after != len(segments):
            done.append(Compacted(table.name, len(segments), after))
    Run.open(folder).keep_derived()
    return done


def _place(segment: Segment) -> tuple[int, str, int]:
    return segment.first_step if segment.first_step is not None else -1, segment.process, segment.number


def _groups(segments: Iterable[Segment]) -> Iterator[list[Segment]]:
    """Runs of neighbouring small segments (by first step), each of about the target size in all and of two files at least."""
    group: list[Segment] = []
    size = 0
    for segment in segments:
        own = Path(segment.path).stat().st_size
        # Rows without steps stay by themselves: a file name with steps promises that all of its rows have one.
        if group and (size + own > TARGET_BYTES or (segment.first_step is None) != (group[-1].first_step is None)):
            if len(group) > 1:
                yield group
            group, size = [], 0
        if own < TARGET_BYTES:
            group.append(segment)
            size += own
    if len(group) > 1:
        yield group


def _replace(folder: Path, run: Run, table: str, group: list[Segment], number: int) -> None:
    writer = SegmentWriter(folder, table, f"compacted-{secrets.token_hex(6)}", number)
    try:
        rows = pa.concat_tables([run.read_segment(segment) for segment in group])
        writer.write(rows.sort_by([("attempt", "ascending"), ("step", "ascending")]) if "step" in rows.column_names else rows)
        final, temporary = writer.finish_unnamed()
    except BaseException:
        writer.abandon()
        raise
    journal = folder / table / f"{JOURNAL_PREFIX}{secrets.token_hex(6)}.json"
    _write_durably(journal, json.dumps({"new": final.name, "old": [Path(s.path).name for s in group]}))
    temporary.rename(final)
    finish_journal(journal)


def finish_journal(journal: Path) -> None:
    """Remove the files that a finished compaction replaced, then its journal. A journal whose new file never came is dropped."""
    plan = json.loads(journal.read_text(encoding="utf-8"))
    if (journal.parent / plan["new"]).exists():
        for name in plan["old"]:
            (journal.parent / name).unlink(missing_ok=True)
    journal.unlink()


def _write_durably(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
