"""Arrow list columns as flat numpy arrays with starts and lengths, without copying values where Arrow allows it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

Array = Any

NO_BITS = np.zeros(0, np.uint8)
"""An absent validity bitmap: nothing is null."""


_KINDS = {pa.float32(): np.float32, pa.int32(): np.int32}


class ListColumn(NamedTuple):
    """A list column: row i is values[start[i]:][:length[i]].

    values: the flat values (for booleans: the packed bitmap, whose element k is bit ``bit + k``). valid: validity bitmap of the
    values (empty: no nulls), element k is bit ``valid_bit + k``. length is -1 where the row itself is null (start is then 0).
    """

    values: Array
    bit: int
    valid: Array
    valid_bit: int
    start: Array
    length: Array


def list_column(column: pa.ChunkedArray) -> ListColumn:
    """Unpack a list column of fixed-width values (at most 2³¹ values). Values are float32, int32 or booleans (a bitmap)."""
    array = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    if isinstance(array, pa.ChunkedArray):  # several chunks that one array could not hold
        raise ValueError("a list column of more than 2^31 values; read fewer steps at a time")
    offsets = np.asarray(array.offsets)
    start = offsets[:-1].astype(np.int64)
    length = np.diff(offsets).astype(np.int64)
    if array.null_count:
        missing = ~np.asarray(array.is_valid())
        start[missing], length[missing] = 0, -1
    items = array.values
    validity, data = items.buffers()[0], items.buffers()[1]
    valid = np.frombuffer(validity, np.uint8) if items.null_count else NO_BITS
    packed = pa.types.is_boolean(items.type)
    kind: Any = np.uint8 if packed else _KINDS[items.type]
    values = np.frombuffer(data, kind) if data is not None else np.zeros(0, kind)
    values, shift = (values, items.offset) if packed else (values[items.offset :], 0)
    return ListColumn(values, shift, valid, items.offset, start, length)


def nulls(column: ListColumn) -> Array | None:
    """True for every flat value that is null; None where none is."""
    if len(column.valid) == 0:
        return None
    return ~_unpacked(column.valid, column.valid_bit, len(column.values))


def flags(column: ListColumn) -> Array | None:
    """The flat values of a column of booleans; None where no row holds any."""
    if len(column.values) == 0 or (column.length <= 0).all():
        return None
    return _unpacked(column.values, column.bit, 8 * len(column.values) - column.bit)


def _unpacked(bitmap: Array, first: int, count: int) -> Array:
    return np.unpackbits(bitmap, bitorder="little")[first : first + count].view(np.bool_)
