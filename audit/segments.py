"""Parquet segments: how rows get into a run's tables, from Arrow or from spools.

A segment is written under a temporary name, flushed to the disk and renamed, so it is complete or absent. Its
name carries the range of steps that it holds, so that readers can skip it without opening it:
``s<first>-<last>_<process>_<number>.parquet``, or ``s_<process>_<number>.parquet`` for rows without steps.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rlaudit import schema
from rlaudit.arrow import arrow_schema
from rlaudit.spool import Blobs, Constant, Field, Frame, Lists, Scalars, read_spool

ROW_GROUP_BYTES = 16 << 20
_NAME = re.compile(r"^s(?:(\d+)-(\d+))?_(.+)_(\d+)\.parquet$")


class Segment(NamedTuple):
    """One Parquet file of a table. Steps are None where its rows have none."""

    table: str
    path: str
    first_step: int | None
    last_step: int | None
    process: str
    number: int


def parse_segment(table: str, path: str) -> Segment | None:
    """The segment that a file name stands for; None where it is no segment's name (a foreign or temporary file)."""
    match = _NAME.match(path.rsplit("/", 1)[-1])
    if not match:
        return None
    first, last, process, number = match.groups()
    return Segment(table, path, int(first) if first else None, int(last) if last else None, process, int(number))


class SegmentWriter:
    """Writes the rows of one table into one segment, in row groups of bounded size."""

    def __init__(self, folder: Path, table: str, process: str, number: int, suffix: str = "") -> None:
        self._folder = folder / table
        self._folder.mkdir(parents=True, exist_ok=True)
        self.table, self._process, self._number = table, process, number
        self._schema = arrow_schema(table)
        self._temporary = self._folder / f".{process}_{number}{suffix}.{os.getpid()}.tmp"
        self._writer: pq.ParquetWriter | None = None
        self._pending: list[pa.Table] = []
        self._pending_bytes = 0
        self._steps: tuple[int, int] | None = None
        self._unstepped = False
        self.rows = 0

    def write(self, rows: pa.Table) -> None:
        """Add rows (the table's schema)."""
        if "step" in rows.column_names:
            self._unstepped |= rows["step"].null_count > 0
            found = pc.min_max(rows["step"]).as_py()
            if found["min"] is not None:
                low, high = self._steps or (found["min"], found["max"])
                self._steps = (min(low, found["min"]), max(high, found["max"]))
        self.rows += rows.num_rows
        self._pending.append(rows)
        self._pending_bytes += rows.nbytes
        if self._pending_bytes >= ROW_GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if not self._pending:
            return
        rows = pa.concat_tables(self._pending)
        self._pending, self._pending_bytes = [], 0
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._temporary, self._schema, **_parquet_options(self.table))
        per_row = max(1, rows.nbytes // max(1, rows.num_rows))
        self._writer.write_table(rows, row_group_size=max(1, ROW_GROUP_BYTES // per_row))

    def close(self) -> Segment | None:
        """Finish the segment and give it its name; None where there were no rows."""
        if not self.rows:
            return None
        final, temporary = self.finish_unnamed()
        temporary.rename(final)
        first, last = self._named_steps() or (None, None)
        return Segment(self.table, str(final), first, last, self._process, self._number)

    def finish_unnamed(self) -> tuple[Path, Path]:
        """Complete the file without giving it its name yet: (the name, where the file is now). For compaction's journal."""
        self._flush()
        if self._writer is None:
            raise ValueError(f"a segment of {self.table} without rows can't be written")
        self._writer.close()
        with self._temporary.open("rb+") as file:
            os.fsync(file.fileno())
        named = self._named_steps()
        steps = f"{named[0]:08d}-{named[1]:08d}" if named else ""
        return self._folder / f"s{steps}_{self._process}_{self._number:06d}.parquet", self._temporary

    def _named_steps(self) -> tuple[int, int] | None:
        """The range of steps for the name; None where any row has none, since readers go by it."""
        return None if self._unstepped else self._steps

    def abandon(self) -> None:
        """Give up: leave nothing behind."""
        if self._writer is not None:
            self._writer.close()
        self._temporary.unlink(missing_ok=True)


def write_rows(folder: Path, table: str, rows: pa.Table, process: str, number: int) -> Segment | None:
    """Write ``rows`` (any subset of the table's columns; the rest become null) as one segment of the run in ``folder``."""
    writer = SegmentWriter(folder, table, process, number)
    try:
        writer.write(conform(rows, table))
        return writer.close()
    except BaseException:
        writer.abandon()
        raise


def conform(rows: pa.Table, table: str) -> pa.Table:
    """``rows`` in the table's schema: columns ordered and cast, missing ones null. ValueError for an unknown column."""
    target = arrow_schema(table)
    unknown = set(rows.column_names) - set(target.names)
    if unknown:
        raise ValueError(f"table {table} has no column {', '.join(sorted(unknown))}")
    columns = [
        rows[field.name].cast(field.type) if field.name in rows.column_names else pa.nulls(rows.num_rows, field.type) for field in target
    ]
    return with_lengths(pa.Table.from_arrays(columns, schema=target), table)


def with_lengths(rows: pa.Table, table: str) -> pa.Table:
    """``rows`` of ``sequences`` with the columns that only count other columns' tokens filled in, so that readers need not read those."""
    if table != "sequences":
        return rows
    for name in ("prompt", "response"):
        place = rows.schema.get_field_index(f"{name}_length")
        lengths = pc.list_value_length(rows[f"{name}_tokens"]).cast(pa.int32())
        rows = rows.set_column(place, rows.schema.field(place), lengths)
    return rows


class Conversion(NamedTuple):
    """What came of a spool: its segments and the rows that each table got."""

    segments: tuple[Segment, ...]
    rows: dict[str, int]


def convert_spool(spool: Path, folder: Path) -> Conversion:
    """Write the rows of ``spool`` as segments of the run in ``folder``; the spool stays (the caller removes it).

    Names follow from the spool's own, so converting one twice gives the same segments, not twice the rows.
    rlaudit.spool.TornSpool where nothing of it can be read.
    """
    process, number = spool.stem.rsplit("_", 1)
    contents = read_spool(spool)
    writers: dict[tuple[str, bool], SegmentWriter] = {}
    try:
        for frame in contents.frames:
            # Rows without a step (an engine's, in a process that trains too) get a segment of their own: its name then says so.
            key = frame.table, _without_step(frame)
            if key not in writers:
                writers[key] = SegmentWriter(folder, frame.table, process, int(number), ".unstepped" if key[1] else "")
            writers[key].write(frame_rows(frame, contents.defaults))
        segments = [segment for writer in writers.values() if (segment := writer.close()) is not None]
    except BaseException:
        for writer in writers.values():
            writer.abandon()
        raise
    rows: dict[str, int] = {}
    for (table, _), writer in writers.items():
        rows[table] = rows.get(table, 0) + writer.rows
    return Conversion(tuple(segments), rows)


def _without_step(frame: Frame) -> bool:
    found = frame.columns.get("step")
    return found is None or (isinstance(found, Constant) and found.value is None)


def frame_rows(frame: Frame, defaults: Mapping[str, Any]) -> pa.Table:
    """A frame's rows in its table's schema; ``defaults`` fill columns that the frame leaves out."""
    target = arrow_schema(frame.table)
    arrays = []
    for field in target:
        found = frame.columns.get(field.name)
        if found is None:
            found = Constant(defaults.get(field.name))
        arrays.append(_array(found, field.type, frame.rows))
    return with_lengths(pa.Table.from_arrays(arrays, schema=target), frame.table)


def _array(field: Field, kind: pa.DataType, rows: int) -> pa.Array:
    if isinstance(field, Constant):
        if field.value is None:
            return pa.nulls(rows, kind)
        return pa.repeat(_scalar(field.value, kind), rows)
    if isinstance(field, Scalars):
        if pa.types.is_timestamp(kind):
            return pa.array([None if value is None else round(value * 1e6) for value in field.values], pa.int64()).cast(kind)
        return pa.array(field.values, kind)
    if isinstance(field, Blobs):
        return _blobs(field)
    return _lists(field, kind)


def _scalar(value: Any, kind: pa.DataType) -> pa.Scalar:
    if pa.types.is_timestamp(kind):
        return pa.scalar(round(value * 1e6), pa.int64()).cast(kind)
    return pa.scalar(value, kind)


def _offsets(lengths: np.ndarray[Any, Any]) -> tuple[pa.Array, pa.Array | None]:
    """List offsets (null rows take no values) and, where some rows are null, the mask of those."""
    missing = lengths < 0
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(np.where(missing, 0, lengths), out=offsets[1:])
    return pa.array(offsets), pa.array(missing) if missing.any() else None


def _lists(field: Lists, kind: pa.DataType) -> pa.Array:
    lengths = np.frombuffer(field.lengths, np.int32)
    values = np.frombuffer(field.values, np.dtype(field.dtype))
    mask = np.frombuffer(field.valid, np.uint8) == 0 if field.valid is not None else None
    if pa.types.is_boolean(kind.value_type):
        values = values.astype(np.bool_)
    items = pa.array(values, mask=mask).cast(kind.value_type)
    offsets, missing = _offsets(lengths)
    return pa.ListArray.from_arrays(offsets, items, type=kind, mask=missing)


def _blobs(field: Blobs) -> pa.Array:
    lengths = np.frombuffer(field.lengths, np.int64)
    offsets, missing = _offsets(lengths)
    validity = pa.array(lengths >= 0).buffers()[1] if missing is not None else None
    return pa.Array.from_buffers(pa.binary(), len(lengths), [validity, offsets.buffers()[1], pa.py_buffer(field.values)])


def _parquet_options(table: str) -> dict[str, Any]:
    """Settings that measured well (benchmarks/capture.py): zstd 1; byte-stream-split for log-probabilities and
    token ids, whose bytes differ in entropy; dictionaries only for short text; statistics only on what readers filter by."""
    columns = schema.BY_NAME[table].columns
    split = [f"{c.name}.list.element" for c in columns if c.type in ("list<float32>", "list<int32>")]
    return {
        "compression": "zstd",
        "compression_level": 1,
        "use_byte_stream_split": split,
        "use_dictionary": [c.name for c in columns if c.type == "string"],
        "write_statistics": [c.name for c in columns if c.name in ("attempt", "step", "sequence_id", "source", "request_id", "parts")],
    }


def iter_spools(folder: Path) -> Iterator[Path]:
    """The spools of a run folder, sealed or still open, in the order in which their processes wrote them."""
    yield from sorted(path for path in (folder / "spool").glob("*_*") if path.suffix in (".spool", ".open"))
