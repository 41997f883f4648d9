"""Segments hold what spools held, under names that say which steps."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlaudit import schema
from rlaudit.arrow import arrow_schema
from rlaudit.segments import convert_spool, parse_segment, write_rows
from rlaudit.spool import Blobs, Constant, Lists, Scalars, SpoolFile, encode_frame


def view(array: np.ndarray) -> memoryview:
    return memoryview(array).cast("B") if array.size else memoryview(b"")


def spool_of(folder: Path, *frames: list[bytes | memoryview]) -> Path:
    spool = SpoolFile(folder / "spool", "h-1-0", 7, {"host": "h", "rank": 3, "process": "h-1-0", "attempt": 2})
    for frame in frames:
        spool.append(frame)
    return spool.seal()


@given(rows=st.lists(st.one_of(st.none(), st.lists(st.one_of(st.none(), st.floats(width=32)), max_size=5)), min_size=1, max_size=6))
@settings(max_examples=40, deadline=None)
def test_lists_survive_with_nulls_nans_and_infinities(
    rows: list[list[float | None] | None], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("run")
    flat = [value for row in rows if row is not None for value in row]
    lists = Lists(
        "<f4",
        view(np.array([-1 if row is None else len(row) for row in rows], np.int32)),
        view(np.array([0.0 if value is None else value for value in flat], np.float32)),
        view(np.array([value is not None for value in flat], np.uint8)),
    )
    convert_spool(spool_of(folder, encode_frame("scores", len(rows), {"logprobs": lists})), folder)
    (path,) = (folder / "scores").glob("*.parquet")
    got = pq.read_table(path)["logprobs"].to_pylist()
    assert len(got) == len(rows)
    for mine, theirs in zip(rows, got, strict=True):
        if mine is None:
            assert theirs is None
            continue
        for a, b in zip(mine, theirs, strict=True):
            assert a == b or (a is not None and b is not None and math.isnan(a) and math.isnan(b))


def test_columns_that_a_frame_leaves_out_take_the_process_facts_or_null(tmp_path: Path) -> None:
    convert_spool(spool_of(tmp_path, encode_frame("scores", 2, {"sequence_id": Scalars(["a", "b"])})), tmp_path)
    (row, _) = pq.read_table(next((tmp_path / "scores").glob("*.parquet"))).to_pylist()
    assert (row["host"], row["rank"], row["attempt"], row["process"]) == ("h", 3, 2, "h-1-0")
    assert row["temperature"] is None


def test_the_name_of_a_segment_says_its_range_of_steps(tmp_path: Path) -> None:
    frames = [encode_frame("scores", 1, {"step": Constant(step)}) for step in (12, 9, 30)]
    (segment,) = convert_spool(spool_of(tmp_path, *frames), tmp_path).segments
    assert Path(segment.path).name == "s00000009-00000030_h-1-0_000007.parquet"
    assert parse_segment("scores", segment.path) == segment


@pytest.mark.parametrize("name", [".h-1-0_7.99.tmp", "data.parquet", "s1-2_x.parquet", "notes.txt"])
def test_other_names_are_no_segments(name: str) -> None:
    assert parse_segment("scores", f"/run/scores/{name}") is None


def test_converting_twice_gives_the_same_segments_not_twice_the_rows(tmp_path: Path) -> None:
    spool = spool_of(tmp_path, encode_frame("scores", 2, {"step": Constant(1)}))
    assert convert_spool(spool, tmp_path) == convert_spool(spool, tmp_path)
    assert len(list((tmp_path / "scores").iterdir())) == 1


def test_a_large_blob_table_is_split_into_row_groups_of_bounded_size(tmp_path: Path) -> None:
    blob = np.random.default_rng(0).integers(0, 255, 6 << 20, np.uint8)
    frame = encode_frame("routing", 1, {"experts": Blobs(view(np.array([blob.nbytes], np.int64)), view(blob))})
    convert_spool(spool_of(tmp_path, *[frame] * 6), tmp_path)
    metadata = pq.ParquetFile(next((tmp_path / "routing").glob("*.parquet"))).metadata
    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [2, 1, 2, 1]


def test_rows_of_an_unknown_column_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no column nonsense"):
        write_rows(tmp_path, "scores", pa.table({"nonsense": [1]}), "h-1-0", 0)


def test_every_column_of_every_table_has_an_arrow_type_and_a_description() -> None:
    for table in schema.TABLES:
        arrow = arrow_schema(table.name)
        assert arrow.names == [column.name for column in table.columns]
        for column in table.columns:
            about = arrow.field(column.name).metadata
            assert about[b"description"].decode() == column.description
            assert about.get(b"unit", b"").decode() == (column.unit or "")
        assert set(table.key) <= set(arrow.names)
