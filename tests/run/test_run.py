"""Opening runs: good ones, live ones, and every kind of bad one, each with one clear message."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rlaudit import Run
from rlaudit.errors import DamagedRun, RunNotFound, UnknownFormat
from rlaudit.manifest import Manifest
from rlaudit.spool import Constant, Scalars, SpoolFile, encode_frame
from tests.synthetic import write_run

SEQUENCES = [{"step": step, "sequence_id": f"s{step}", "response_tokens": [1, 2]} for step in (0, 1, 5)]


def test_a_run_reads_back_its_rows_in_the_schemas_types(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", sequences=SEQUENCES)
    table = run.read("sequences", ["step", "response_tokens"])
    assert table.schema.field("response_tokens").type == pa.list_(pa.int32())
    assert table["step"].to_pylist() == [0, 1, 5]
    assert run.steps() == [0, 1, 5]


def test_a_step_range_reads_only_its_steps(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", sequences=SEQUENCES)
    assert run.read("sequences", ["step"], steps=(1, 4))["step"].to_pylist() == [1]
    assert run.segments("sequences", (6, 9)) == []


def test_a_table_without_segments_reads_as_empty(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    assert run.read("scores").num_rows == 0
    assert run.steps() == []


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: None, "does not exist"),
        (lambda p: p.mkdir(), "holds no run"),
        (lambda p: p.write_text("x"), "is a file"),
    ],
)
def test_what_is_no_run_is_named(tmp_path: Path, make: object, message: str) -> None:
    make(tmp_path / "x")  # type: ignore[operator]
    with pytest.raises(RunNotFound, match=message):
        Run.open(tmp_path / "x")


def test_a_newer_format_is_refused_with_both_versions_and_what_to_do(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    path = tmp_path / "run" / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format_version": 99}))
    with pytest.raises(UnknownFormat, match=r"version 99; this rlaudit reads version 1\. Install a newer rlaudit"):
        Run.open(tmp_path / "run")


@pytest.mark.parametrize("text", ["{", "[]", '{"run_id": "x"}', ""])
def test_a_damaged_manifest_is_named(tmp_path: Path, text: str) -> None:
    write_run(tmp_path / "run")
    (tmp_path / "run" / "manifest.json").write_text(text)
    with pytest.raises(DamagedRun, match=r"manifest\.json is not a run's manifest"):
        Run.open(tmp_path / "run")


def test_a_manifest_keeps_fields_it_knows_and_ignores_later_ones() -> None:
    manifest = Manifest.from_json('{"format_version": 1, "run_id": "a", "command": ["x"], "added_later": 3}', "m")
    assert (manifest.run_id, manifest.command) == ("a", ["x"])


def test_a_foreign_parquet_file_is_left_alone_and_listed(tmp_path: Path) -> None:
    write_run(tmp_path / "run", sequences=SEQUENCES)
    pq.write_table(pa.table({"x": [1]}), tmp_path / "run" / "sequences" / "mine.parquet")
    run = Run.open(tmp_path / "run")
    assert [Path(p).name for p in run.foreign] == ["mine.parquet"]
    assert run.steps() == [0, 1, 5]


def test_a_half_written_segment_under_a_temporary_name_is_not_seen(tmp_path: Path) -> None:
    write_run(tmp_path / "run", sequences=SEQUENCES)
    (tmp_path / "run" / "sequences" / ".host-1-0_1.9.tmp").write_bytes(b"PAR1")
    run = Run.open(tmp_path / "run")
    assert run.steps() == [0, 1, 5]
    assert run.foreign == []


def test_a_truncated_segment_is_named_with_what_to_do(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", sequences=SEQUENCES)
    path = Path(run.segments("sequences")[0].path)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(DamagedRun, match=f"{path.name}.*move it out"):
        run.steps()
    with pytest.raises(DamagedRun, match=path.name):
        run.check_segments()


def test_a_segments_name_on_a_foreign_file_is_recognised(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", sequences=SEQUENCES)
    pq.write_table(pa.table({"x": [1]}), tmp_path / "run" / "sequences" / "s00000001-00000001_other_000000.parquet")
    with pytest.raises(DamagedRun, match="no segment of table sequences as this rlaudit knows it: it lacks"):
        Run.open(run.path).check_segments()


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_manifest_says_permission_denied(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    (tmp_path / "run" / "manifest.json").chmod(0)
    with pytest.raises(RunNotFound, match="permission denied"):
        Run.open(tmp_path / "run")


def spooled(folder: Path, number: int = 0) -> SpoolFile:
    spool = SpoolFile(folder / "spool", "host-9-0", number, {"host": "h", "rank": None, "process": "host-9-0", "attempt": 0})
    spool.append(encode_frame("sequences", 2, {"step": Constant(7), "sequence_id": Scalars([f"a{number}", f"b{number}"])}))
    return spool


def test_rows_still_in_a_spool_are_read_and_the_folder_stays_as_it_was(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", sequences=SEQUENCES)
    spooled(tmp_path / "run")  # open: its process was killed, or still writes
    spooled(tmp_path / "run", 1).seal()
    before = sorted(p.name for p in (tmp_path / "run").rglob("*"))
    assert Run.open(run.path).steps() == [0, 1, 5, 7]
    assert Run.open(run.path).read("sequences").num_rows == 7
    assert sorted(p.name for p in (tmp_path / "run").rglob("*")) == before


def test_a_spool_whose_segments_exist_already_is_not_counted_twice(tmp_path: Path) -> None:
    from rlaudit.segments import convert_spool

    write_run(tmp_path / "run")
    sealed = spooled(tmp_path / "run").seal()
    convert_spool(sealed, tmp_path / "run")  # as a launcher that died before it removed the spool
    assert Run.open(tmp_path / "run").read("sequences").num_rows == 2


def test_a_spool_of_which_nothing_can_be_read_is_said_and_the_rest_stays(tmp_path: Path) -> None:
    write_run(tmp_path / "run", sequences=SEQUENCES)
    (tmp_path / "run" / "spool").mkdir()
    (tmp_path / "run" / "spool" / "host-9-0_000000.open").write_bytes(b"RLAS")
    run = Run.open(tmp_path / "run")
    assert run.steps() == [0, 1, 5]
    assert "shorter than a spool's header" in run.torn[0]


def test_a_run_on_an_object_store_reads_and_queries_like_a_folder(tmp_path: Path) -> None:
    import fsspec

    run = write_run(tmp_path / "run", sequences=SEQUENCES)
    memory = fsspec.filesystem("memory")
    memory.put(run.path, "/bucket/run", recursive=True)
    remote = Run.open("memory://bucket/run")
    assert remote.steps() == [0, 1, 5]
    assert remote.connect().execute("select count(*) from sequences").fetchone() == (3,)
