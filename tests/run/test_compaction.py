"""Compaction changes how many files there are and nothing that a reader can see, even if it is killed half-way."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from rlaudit import Run
from rlaudit.arrow import arrow_schema
from rlaudit.compaction import compact
from rlaudit.errors import DamagedRun
from rlaudit.segments import write_rows
from tests.synthetic import write_run


@pytest.fixture
def scattered(tmp_path: Path) -> Path:
    """A run of 30 processes with a few small segments each."""
    run = write_run(tmp_path / "run")
    for process in range(30):
        rows = [{"attempt": 0, "step": s, "sequence_id": f"{process}-{s}", "response_tokens": [process, s]} for s in range(3)]
        write_rows(Path(run.path), "sequences", pa.Table.from_pylist(rows, schema=arrow_schema("sequences")), f"host-{process}-0", 0)
    return Path(run.path)


def contents(folder: Path) -> list[tuple[str, list[int]]]:
    table = Run.open(folder).read("sequences", ["sequence_id", "response_tokens"])
    return sorted(zip(table["sequence_id"].to_pylist(), table["response_tokens"].to_pylist(), strict=True))


def test_many_small_segments_become_one_with_the_same_rows(scattered: Path) -> None:
    before = contents(scattered)
    assert [(c.table, c.before, c.after) for c in compact(scattered)] == [("sequences", 30, 1)]
    assert contents(scattered) == before
    assert len(list((scattered / "sequences").iterdir())) == 1
    assert Run.open(scattered).read("sequences")["step"].to_pylist() == sorted(Run.open(scattered).read("sequences")["step"].to_pylist())


def test_compacting_twice_does_nothing_more(scattered: Path) -> None:
    compact(scattered)
    assert compact(scattered) == []


@pytest.mark.parametrize("moment", ["before the new file has its name", "before the old files go", "between two old files"])
def test_a_crash_at_any_moment_shows_every_row_once(scattered: Path, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    before = contents(scattered)
    real_rename, real_unlink = Path.rename, Path.unlink
    removed = 0

    def rename(self: Path, target: Path) -> Path:
        if moment == "before the new file has its name":
            raise KeyboardInterrupt
        return real_rename(self, target)

    def unlink(self: Path, missing_ok: bool = False) -> None:
        nonlocal removed
        if self.suffix == ".parquet":
            if moment == "before the old files go" or (moment == "between two old files" and removed == 1):
                raise KeyboardInterrupt
            removed += 1
        real_unlink(self, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "rename", rename)
    monkeypatch.setattr(Path, "unlink", unlink)
    with pytest.raises(KeyboardInterrupt):
        compact(scattered)
    monkeypatch.undo()
    assert contents(scattered) == before
    compact(scattered)
    assert contents(scattered) == before
    assert list((scattered / "sequences").glob(".compaction-*")) == [], "the next compaction tidies up"


def test_a_damaged_segment_stops_the_compaction_of_its_table_unchanged(scattered: Path) -> None:
    victim = sorted((scattered / "sequences").iterdir())[5]
    victim.write_bytes(b"PAR1")
    names = sorted(p.name for p in (scattered / "sequences").iterdir())
    with pytest.raises(DamagedRun, match=victim.name):
        compact(scattered)
    assert sorted(p.name for p in (scattered / "sequences").iterdir()) == names


def test_a_journal_names_what_replaces_what(scattered: Path) -> None:
    new, old = sorted(p.name for p in (scattered / "sequences").iterdir())[:2]
    (scattered / "sequences" / ".compaction-x.json").write_text(json.dumps({"new": new, "old": [old]}))
    assert len(contents(scattered)) == 29 * 3
    (scattered / "sequences" / ".compaction-x.json").write_text(json.dumps({"new": "never-came.parquet", "old": [old]}))
    assert len(contents(scattered)) == 30 * 3
