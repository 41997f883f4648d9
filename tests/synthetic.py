"""Writes small runs from plain rows, in the product's own format, for tests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from rlaudit.arrow import arrow_schema
from rlaudit.manifest import Manifest
from rlaudit.run import Run
from rlaudit.schema import expert_bytes
from rlaudit.segments import write_rows

Rows = Iterable[Mapping[str, Any]]

DEFAULTS: dict[str, dict[str, Any]] = {
    "sequences": {"attempt": 0, "phase": "train", "prompt_tokens": [1, 2]},
    "scores": {"attempt": 0, "update": 0, "first_position": 0, "policy_updates": 0},
    "routing": {"attempt": 0, "update": 0, "first_position": 0, "policy_updates": 0},
    "links": {"attempt": 0, "turn": 0, "start": 0, "method": "framework", "ambiguous": False},
    "requests": {"attempt": 0, "phase": "train"},
    "weights": {"attempt": 0},
    "framework_metrics": {"attempt": 0, "framework": "trl"},
    "events": {"attempt": 0},
}


def write_run(path: Path, *, manifest: Mapping[str, Any] | None = None, process: str = "host-1-0", **tables: Rows) -> Run:
    """Write a run whose tables hold the given rows (left-out columns take DEFAULTS, then null) and open it."""
    path.mkdir(parents=True, exist_ok=True)
    Manifest(**{"run_id": path.name, "command": ["python", "train.py"], **(manifest or {})}).write(path)
    for table, rows in tables.items():
        filled = [{**DEFAULTS[table], **row} for row in rows]
        if filled:
            write_rows(path, table, pa.Table.from_pylist(filled, schema=arrow_schema(table)), process, 0)
    return Run.open(path)


def experts_row(sequence_id: str, source: str, ids: Any, *, num_experts: int, step: int = 0, **more: Any) -> dict[str, Any]:
    """A ``routing`` row from expert ids of shape (tokens, layers, top_k)."""
    array = np.asarray(ids)
    kind = np.uint8 if expert_bytes(num_experts) == 1 else np.dtype("<u2")
    return {
        "step": step,
        "sequence_id": sequence_id,
        "source": source,
        "tokens": array.shape[0],
        "layer_ids": list(range(array.shape[1])),
        "top_k": array.shape[2],
        "num_experts": num_experts,
        "experts": array.astype(kind).tobytes(),
        **more,
    }
