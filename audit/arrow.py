"""The schema's Arrow types: what ``rlaudit.schema`` says, as pyarrow objects."""

from __future__ import annotations

from functools import cache

import pyarrow as pa

from rlaudit import schema

_SPANS = pa.list_(pa.struct([("start", pa.int32()), ("end", pa.int32()), ("version", pa.string()), ("updates", pa.int64())]))
_TYPES: dict[str, pa.DataType] = {
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float64": pa.float64(),
    "string": pa.string(),
    "bool": pa.bool_(),
    "binary": pa.binary(),
    "timestamp[us]": pa.timestamp("us"),
    "list<int32>": pa.list_(pa.int32()),
    "list<float32>": pa.list_(pa.float32()),
    "list<bool>": pa.list_(pa.bool_()),
    "spans": _SPANS,
}


def arrow_type(name: str) -> pa.DataType:
    """The Arrow type for a type name of ``rlaudit.schema``."""
    return _TYPES[name]


@cache
def arrow_schema(table: str) -> pa.Schema:
    """The Arrow schema of a table, with description and unit as field metadata."""
    fields = []
    for column in schema.BY_NAME[table].columns:
        about = {"description": column.description}
        if column.unit:
            about["unit"] = column.unit
        fields.append(pa.field(column.name, arrow_type(column.type), metadata=about))
    return pa.schema(fields, metadata={"rlaudit.table": table, "rlaudit.format": str(schema.FORMAT_VERSION)})
