"""Routing rows as the routing pass reads them: in chunks of whole sequences, experts' bytes where Arrow holds them.

Memory is bounded by ``CHUNK_BYTES``, or by one step's routing where that is less.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rlaudit import schema
from rlaudit.analyzers.grouping import (
    ENGINE,
    OTHER,
    ROLLOUT,
    TRAINER,
    UNKNOWN,
    UPDATE,
    Group,
    Steps,
    integers,
    locate,
    read_rows,
    source_codes,
)
from rlaudit.arrow import arrow_schema
from rlaudit.run import Run

Array = Any
CHUNK_BYTES = 512 << 20
"""Expert bytes that are held at a time."""

SOURCE_NAMES = {ROLLOUT: "rollout", TRAINER: "trainer", UPDATE: "update", ENGINE: "engine", OTHER: "other"}

_LINKS = ("attempt", "request_id", "step", "sequence_id", "routing_from")

_INDEX = (
    "attempt",
    "step",
    "sequence_id",
    "source",
    "update",
    "first_position",
    "tokens",
    "layer_ids",
    "top_k",
    "num_experts",
    "parts",
    "policy_updates",
)


class InvalidBlob(NamedTuple):
    """A routing row whose bytes are not tokens × layers × top_k ids."""

    step: int
    sequence_id: str
    source: str
    expected: int
    found: int


class RoutingRows(NamedTuple):
    """Routing rows of a chunk, one entry each; its experts are
    data[chunk][start:][:size]."""

    sequence: Array
    source: Array
    update: Array
    first: Array
    tokens: Array
    updates: Array
    layers: list[tuple[int, ...]]
    top_k: Array
    num_experts: Array
    parts: Array
    data: list[Array]
    chunk: Array
    start: Array
    size: Array


def chunks_of(run: Run, group: Group, steps: Steps) -> Iterator[RoutingRows]:
    """The group's routing rows in chunks of whole sequences and about ``CHUNK_BYTES``. Rows that engines wrote by request come under the
    sequences that the requests are linked to."""
    keyed, by_request = _index(run, steps), _Linked(run, steps)
    index = pa.concat_tables([keyed, by_request.index])
    if index.num_rows == 0:
        return
    step = integers(index["step"])
    size = _expected_bytes(index)
    if size.sum() <= CHUNK_BYTES:
        yield _unpacked(group, _whole(run, steps, by_request, None))
        return
    for number in np.unique(step[step != UNKNOWN]).tolist():
        here = step == number
        parts = math.ceil(size[here].sum() / CHUNK_BYTES)
        ids = pc.unique(index["sequence_id"].filter(pa.array(here)))
        for part in range(parts):
            wanted = ids.take(pa.array(np.arange(part, len(ids), parts))) if parts > 1 else None
            yield _unpacked(group, _whole(run, (number, number), by_request, wanted))


_COLUMNS = (*_INDEX, "experts")


def _index(run: Run, steps: Steps) -> pa.Table:
    return _with_tail(read_rows(run, "routing", _INDEX, steps), np.int64(0))


def _with_tail(rows: pa.Table, skip: Any) -> pa.Table:
    """``rows`` with the number of their first token rows that don't count."""
    return rows.append_column("skip", pa.array(np.broadcast_to(skip, rows.num_rows).astype(np.int64)))


def _whole(run: Run, steps: Steps, linked: _Linked, only: pa.Array | None) -> pa.Table:
    """Keyed rows and rows by request of ``steps``, of the sequences ``only`` (None: all), experts included."""
    if only is None:
        rows = read_rows(run, "routing", _COLUMNS, steps)
    else:
        rows = run.read("routing", _COLUMNS, steps=steps, filters=pc.field("sequence_id").isin(only))
    return pa.concat_tables([_with_tail(rows, np.int64(0)), linked.rows(steps, only)])


class _Linked:
    """Routing that engines wrote by request, for the sequences of a range of steps. Where no row lacks a step, it costs nothing."""

    def __init__(self, run: Run, steps: Steps) -> None:
        self._run = run
        self._segments = [segment for segment in run.segments("routing") if segment.first_step is None]
        self._links: pa.Table | None = None
        names = tuple(name for name in _INDEX if name not in ("step", "sequence_id"))
        self._read_names = (*names, "request_id")
        if self._segments:
            links = run.read("links", _LINKS, steps=steps, filters=pc.field("routing_from").is_valid())
            self._links = links.append_column("versions", _single_versions(run, steps, links))
        self.index = self._join(self._read_names, steps, None)

    def rows(self, steps: Steps, only: pa.Array | None) -> pa.Table:
        """Rows with experts, as ``_INDEX`` and ``experts`` and ``skip``."""
        return self._join((*self._read_names, "experts"), steps, only)

    def _join(self, names: tuple[str, ...], steps: Steps, only: pa.Array | None) -> pa.Table:
        columns = _COLUMNS if "experts" in names else _INDEX
        target = pa.schema([arrow_schema("routing").field(name) for name in columns])
        parts = []
        for segment in self._segments:
            if self._links is None:
                break
            links = self._links.filter((pc.field("step") >= steps[0]) & (pc.field("step") <= steps[1]))
            if only is not None:
                links = links.filter(pc.field("sequence_id").isin(only))
            rows = self._run.read_segment(segment, names, pc.field("request_id").isin(pc.unique(links["request_id"])))
            if rows.num_rows == 0 or links.num_rows == 0:
                continue
            place = pa.array(np.arange(rows.num_rows))
            keys = rows.select(["attempt", "request_id"]).append_column("place", place)
            joined = links.join(keys, ["attempt", "request_id"], join_type="inner", use_threads=False).sort_by("place")
            rows = rows.take(joined["place"])
            skip = (integers(joined["routing_from"]) - integers(rows["first_position"])).clip(0)
            updates = pc.coalesce(rows["policy_updates"], joined["versions"])
            rows = rows.append_column("step", joined["step"]).append_column("sequence_id", joined["sequence_id"])
            rows = rows.set_column(rows.schema.get_field_index("policy_updates"), "policy_updates", updates)
            parts.append(_with_tail(rows.select(columns).cast(target), skip))
        return pa.concat_tables(parts) if parts else _with_tail(target.empty_table(), np.int64(0))


def _single_versions(run: Run, steps: Steps, links: pa.Table) -> pa.Array:
    """For each link the optimizer steps behind its sequence's engine scores, null where they are of several versions or unknown."""
    scores = run.read(
        "scores",
        ("attempt", "step", "sequence_id", "policy_updates"),
        steps=steps,
        filters=pc.field("source").isin(["rollout", "engine"]),
    )
    versions: dict[tuple[int, int, str], set[int | None]] = {}
    for attempt, step, name, updates in zip(*(scores[c].to_pylist() for c in scores.column_names), strict=True):
        versions.setdefault((attempt, step, name), set()).add(updates)
    keys = zip(*(links[name].to_pylist() for name in ("attempt", "step", "sequence_id")), strict=True)
    single = [found.pop() if len(found := set(versions.get(key, ()))) == 1 else None for key in keys]
    return pa.array(single, pa.int64())


def _expected_bytes(index: pa.Table) -> Array:
    """Bytes of ``experts`` of each row, by its other columns."""
    layers = np.asarray(pc.fill_null(pc.list_value_length(index["layer_ids"]), 0)).astype(np.int64)
    wide = np.where(integers(index["num_experts"]) > 256, 2, 1)
    return integers(index["tokens"]).clip(0) * layers * integers(index["top_k"]).clip(0) * wide


def _unpacked(group: Group, table: pa.Table) -> RoutingRows:
    chunks, starts, sizes = [], [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for chunk in table["experts"].chunks:  # not combined: that would copy them
        offsets = np.frombuffer(chunk.buffers()[1], np.int32)[chunk.offset :][: len(chunk) + 1].astype(np.int64)
        data = chunk.buffers()[2]
        chunks.append(np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8))
        starts.append(offsets[:-1])
        sizes.append(np.diff(offsets))
    size = np.concatenate(sizes)
    skip, tokens = integers(table["skip"]), integers(table["tokens"])
    skip = np.minimum(skip, tokens.clip(0))
    whole = size == _expected_bytes(table)
    skipped = np.where(whole & (skip > 0), size // tokens.clip(1) * skip, 0)
    return RoutingRows(
        sequence=locate(group, table),
        source=source_codes(table["source"]),
        update=integers(table["update"]),
        first=integers(table["first_position"]) + skip,
        tokens=tokens - skip,
        updates=integers(table["policy_updates"]),
        layers=[tuple(layers) if layers is not None else () for layers in table["layer_ids"].to_pylist()],
        top_k=integers(table["top_k"]),
        num_experts=integers(table["num_experts"]),
        parts=integers(table["parts"]).clip(1),
        data=chunks,
        chunk=np.repeat(np.arange(len(chunks)), [len(chunk) for chunk in table["experts"].chunks]),
        start=np.concatenate(starts) + skipped,
        size=size - skipped,
    )


def expected_bytes(rows: RoutingRows, row: int) -> int:
    return int(rows.tokens[row] * len(rows.layers[row]) * rows.top_k[row] * schema.expert_bytes(int(rows.num_experts[row])))


def broken_rows(group: Group, rows: RoutingRows) -> list[InvalidBlob]:
    return [
        InvalidBlob(
            int(group.step[rows.sequence[r]]),
            str(group.ids[rows.sequence[r]]),
            SOURCE_NAMES[int(rows.source[r])],
            expected_bytes(rows, r),
            int(rows.size[r]),
        )
        for r in range(len(rows.sequence))
        if rows.sequence[r] >= 0 and rows.size[r] != expected_bytes(rows, r)
    ]
