"""A copy of a run that may leave the house: numbers stay, whatever says who, where and what was written goes.

Token ids become keyed hashes (equal ones stay equal, so token identity can still be audited), names of sequences, groups and
hosts become numbered ones, and free text (commands, paths, messages, environment) is left out. The key is thrown away.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from rlaudit import schema
from rlaudit.errors import RunExists
from rlaudit.manifest import Manifest
from rlaudit.run import Run
from rlaudit.segments import SegmentWriter
from rlaudit.tokens import TokenHasher

NAMES = ("sequence_id", "group_id", "trajectory_id", "request_id", "engine_id", "policy_version", "host", "process", "tensor")
"""Columns whose values are names that users or machines chose: replaced, equal ones by equal ones, in every table."""
KEPT_EVENTS = ("heartbeat", "hook_attached", "hook_refused", "capture_stopped", "rows_dropped", "not_recorded")
"""Kinds of events that are kept; others describe the machine."""
KEPT_DETAILS = ("rows", "dropped", "bytes", "hook_seconds", "writer_seconds", "process_seconds", "distribution", "version")


def export_redacted(source: Run, out: Path) -> Run:
    """Write the redacted copy of ``source`` to ``out`` and open it. RunExists where ``out`` holds something already.

    Kept as they are: token positions and lengths, masks, log-probabilities, entropies, routing, rewards, advantages, sampling
    parameters, policy counters, dtypes, backends, the framework's metrics under its names, and package versions.
    """
    if out.exists() and any(out.iterdir()):
        raise RunExists(f"{out} is not empty; give a folder that doesn't exist yet")
    out.mkdir(parents=True, exist_ok=True)
    out.chmod(0o700)
    key = secrets.token_bytes(32)
    hasher, renamer = TokenHasher(key), _renamer(key)
    for table in schema.TABLES:
        for number, segment in enumerate(source.segments(table.name)):
            rows = source.read_segment(segment)
            writer = SegmentWriter(out, table.name, "redacted", number)
            writer.write(_redact(rows, table, hasher, renamer))
            writer.close()
    _manifest(source.manifest).write(out)
    return Run.open(out)


def _renamer(key: bytes) -> Callable[[str, str | None], str | None]:
    """(column, name) to a name that says nothing but whether two are equal."""

    def rename(column: str, name: str | None) -> str | None:
        if name is None:
            return None
        digest = hashlib.blake2b(name.encode(), digest_size=6, key=key, person=column.encode()[:16]).hexdigest()
        return f"{column.removesuffix('_id')}-{digest}"

    return rename


def _redact(rows: pa.Table, table: schema.Table, hasher: TokenHasher, rename: Callable[[str, str | None], str | None]) -> pa.Table:
    if table.name == "events":
        rows = _redact_events(rows)
    for place, column in enumerate(table.columns):
        field = rows.schema.field(column.name)
        values = rows[column.name]
        if column.name in schema.TOKEN_COLUMNS.get(table.name, ()):
            rows = rows.set_column(place, field, _hashed(values.combine_chunks(), hasher))
        elif column.name in NAMES:
            rows = rows.set_column(place, field, pa.array([rename(column.name, value) for value in values.to_pylist()], field.type))
        elif column.name in ("version_spans", "checkpoint"):
            rows = rows.set_column(place, field, pa.nulls(rows.num_rows, field.type))
    return rows


def _hashed(lists: pa.ListArray, hasher: TokenHasher) -> pa.ListArray:
    values = lists.values
    hashed = pa.array(
        hasher(values.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int32)), mask=values.is_null().to_numpy(zero_copy_only=False)
    )
    return pa.ListArray.from_arrays(lists.offsets, hashed, type=lists.type, mask=lists.is_null() if lists.null_count else None)


def _redact_events(rows: pa.Table) -> pa.Table:
    kept = [row for row in rows.to_pylist() if row["kind"] in KEPT_EVENTS]
    for row in kept:
        detail = json.loads(row["detail"]) if row["detail"] else {}
        row["detail"] = json.dumps({name: value for name, value in detail.items() if name in KEPT_DETAILS}) if detail else None
        row["message"] = None
        if row["kind"] == "capture_stopped":
            row["name"] = "stopped"  # the reason may hold a path
    return pa.Table.from_pylist(kept, schema=rows.schema)


def _manifest(manifest: Manifest) -> Manifest:
    return replace(
        manifest,
        run_id=f"redacted-{secrets.token_hex(6)}",
        job=None,
        command=[],
        working_directory=None,
        hosts=[f"host {number}" for number in range(1, len(manifest.hosts) + 1)],
        environment={},
        git={},
        settings={name: value for name, value in manifest.settings.items() if name != "platform"},
        options={**manifest.options, "tokens": "hashed"},
    )
