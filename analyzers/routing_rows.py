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
from rlaudit.analyzers.grouping import OTHER, ROLLOUT, TRAINER, UNKNOWN, UPDATE, Group, Steps, integers, locate, read_rows, source_codes
from rlaudit.run import Run

Array = Any
CHUNK_BYTES = 512 << 20
"""Expert bytes that are held at a time."""

SOURCE_NAMES = {ROLLOUT: "rollout", TRAINER: "trainer", UPDATE: "update", OTHER: "other"}

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
    """The group's routing rows in chunks of whole sequences and about ``CHUNK_BYTES``."""
    index = read_rows(run, "routing", _INDEX, steps)
    if index.num_rows == 0:
        return
    step, columns = integers(index["step"]), (*_INDEX, "experts")
    size = _expected_bytes(index)
    if size.sum() <= CHUNK_BYTES:
        yield _unpacked(group, read_rows(run, "routing", columns, steps))
        return
    for number in np.unique(step[step != UNKNOWN]).tolist():
        here = step == number
        parts = math.ceil(size[here].sum() / CHUNK_BYTES)
        if parts == 1:
            yield _unpacked(group, read_rows(run, "routing", columns, (number, number)))
            continue
        ids = pc.unique(index["sequence_id"].filter(pa.array(here)))
        for part in range(parts):
            wanted = pc.field("sequence_id").isin(ids.take(pa.array(np.arange(part, len(ids), parts))))
            yield _unpacked(group, run.read("routing", columns, steps=(number, number), filters=wanted))


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
    return RoutingRows(
        sequence=locate(group, table),
        source=source_codes(table["source"]),
        update=integers(table["update"]),
        first=integers(table["first_position"]),
        tokens=integers(table["tokens"]),
        updates=integers(table["policy_updates"]),
        layers=[tuple(layers) if layers is not None else () for layers in table["layer_ids"].to_pylist()],
        top_k=integers(table["top_k"]),
        num_experts=integers(table["num_experts"]),
        parts=integers(table["parts"]).clip(1),
        data=chunks,
        chunk=np.repeat(np.arange(len(chunks)), [len(chunk) for chunk in table["experts"].chunks]),
        start=np.concatenate(starts),
        size=np.concatenate(sizes),
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
