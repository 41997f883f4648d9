"""A run from SGLang's own request log: no capture, also of servers that run elsewhere.

Read: SGLang 0.5.19, ``sglang.srt.utils.request_logger.RequestLogger`` and ``log_utils.log_json``. With ``--log-requests
--log-requests-level 3 --log-requests-format json --log-requests-target FOLDER`` each line ends in a JSON object, and that of
``request.finished`` has the sub-request (``obj``) and its answer (``out``) whole. Lower levels leave token ids out or shorten them: such
calls are counted, not imported.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from rlaudit.capture.engines.sglang_routing import decoded
from rlaudit.capture.engines.sglang_rows import Answer, answer_row, input_tokens
from rlaudit.capture.engines.vllm_moe import Routed, routed_layers
from rlaudit.errors import BadOption, RunExists

if TYPE_CHECKING:
    from rlaudit.segments import SegmentWriter

FINISHED, RECEIVED = "request.finished", "request.received"
BATCH = 1000
"""Calls in memory at once."""


@dataclass(slots=True)
class Imported:
    """What an import did. shortened: finished calls whose token ids the log's level left out. damaged: lines that are no JSON.

    unshaped: calls whose routed experts were left out, because no model configuration says their shape.
    """

    requests: int = 0
    routing: int = 0
    shortened: int = 0
    damaged: int = 0
    unshaped: int = 0


def import_sglang_log(path: Path, out: Path, config: Path | None = None) -> Imported:
    """Write the run ``out`` from a log file or a folder of them.

    config: the model's ``config.json``, without which routed experts have no shape and are left out. Times in the log are taken as of
    this machine's time zone. logprob_mode is null at temperatures other than 0 and 1, as the log doesn't say what SGLang's environment
    asked for. Raises BadOption where there is no finished call, RunExists where ``out`` is there.
    """
    from rlaudit.manifest import Manifest
    from rlaudit.segments import SegmentWriter

    files = sorted(path.glob("*.log")) if path.is_dir() else [path]
    if not files or not all(file.is_file() for file in files):
        raise BadOption(f"{path} is no log file and no folder of *.log files")
    if out.exists():
        raise RunExists(f"{out} exists already; name another folder with --out")
    model = None if config is None else SimpleNamespace(**json.loads(config.read_text(encoding="utf-8")))
    shape = None if model is None else (routed_layers(model), int(model.num_experts_per_tok))
    calls = _finished(files, counted := Imported())
    first = next(calls, None)
    if first is None:
        raise BadOption(f"{path} has no finished call with its token ids; log with --log-requests-level 3 --log-requests-format json")
    out.mkdir(parents=True)
    process = f"sglang-log-{secrets.token_hex(4)}"
    writers = {table: SegmentWriter(out, table, process, 0) for table in ("requests", "routing")}
    try:
        _write(first, calls, writers, shape, counted)
        for table, writer in writers.items():
            if getattr(counted, table):
                writer.close()
            else:
                writer.abandon()
    except BaseException:
        for writer in writers.values():
            writer.abandon()
        raise
    Manifest(run_id=out.name, command=["rlaudit", "import", "sglang-log"]).write(out)
    return counted


def _write(
    first: dict[str, Any],
    calls: Iterator[dict[str, Any]],
    writers: dict[str, SegmentWriter],
    shape: tuple[Routed | None, int] | None,
    counted: Imported,
) -> None:
    pending: dict[str, list[dict[str, Any]]] = {"requests": [], "routing": []}
    call: dict[str, Any] | None = first
    while call is not None:
        pending["requests"].append(call["row"])
        counted.requests += 1
        if call["routed"] is not None:
            routing = _routing(call, shape)
            if routing is None:
                counted.unshaped += 1
            else:
                pending["routing"].append(routing)
                counted.routing += 1
        call = next(calls, None)
        if call is None or len(pending["requests"]) >= BATCH:
            for table, rows in pending.items():
                if rows:
                    writers[table].write(_table(table, rows))
                    rows.clear()


def _table(name: str, rows: list[dict[str, Any]]) -> Any:
    import pyarrow as pa

    from rlaudit.arrow import arrow_schema
    from rlaudit.segments import conform

    return conform(pa.Table.from_pylist(rows, schema=arrow_schema(name)), name)


def _finished(files: list[Path], counted: Imported) -> Iterator[dict[str, Any]]:
    """Finished calls: their row, routed experts as text, and where these begin."""
    for file in files:
        received: dict[str, datetime] = {}
        with file.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                data = _parsed(line, counted)
                if data is None:
                    continue
                time = datetime.fromisoformat(data["timestamp"]).astimezone(timezone.utc)
                if data["event"] == RECEIVED:
                    names = data["rid"] if isinstance(data["rid"], list) else [data["rid"]]
                    received.update((str(name), time) for name in names)
                elif data["event"] == FINISHED and "meta_info" in data.get("out", {}):
                    row = _row(data, counted)
                    if row is not None:
                        row["row"].update(
                            attempt=0, started=received.pop(row["row"]["request_id"], None), finished=time, engine_id=file.stem
                        )
                        yield row


def _parsed(line: str, counted: Imported) -> dict[str, Any] | None:
    start = line.find("{")
    if start < 0:
        return None
    try:
        data = json.loads(line[start:])
    except ValueError:
        counted.damaged += 1
        return None
    return data if isinstance(data, dict) and {"event", "timestamp", "rid"} <= data.keys() else None


def _row(data: dict[str, Any], counted: Imported) -> dict[str, Any] | None:
    out, given = data["out"], data["obj"]
    meta, tokens = out["meta_info"], out.get("output_ids")
    if tokens is None or "..." in tokens or "..." in (given.get("input_ids") or ()):
        counted.shortened += 1
        return None
    obj = SimpleNamespace(input_ids=given.get("input_ids"), parallel_sample_num=1)
    prompt = input_tokens(obj, out, 0)
    reason = meta.get("finish_reason")
    name = str(reason.get("type")) if isinstance(reason, dict) else str(reason)
    answer = Answer(meta, tokens, meta.get("output_token_logprobs"), prompt, 0, name)
    start = int(given.get("routed_experts_start_len") or 0)
    return {"row": answer_row(answer, given.get("sampling_params") or {}, None), "routed": meta.get("routed_experts"), "start": start}


def _routing(call: dict[str, Any], shape: tuple[Routed | None, int] | None) -> dict[str, Any] | None:
    import numpy as np

    from rlaudit.schema import expert_bytes

    routed, top_k = shape or (None, 0)
    if routed is None:
        return None
    experts = decoded(call["routed"], routed.layers, top_k)[:, list(routed.layer_ids)]
    kind = np.uint8 if expert_bytes(routed.num_experts) == 1 else np.dtype("<u2")
    row = call["row"]
    return {
        "attempt": 0,
        "request_id": row["request_id"],
        "source": "rollout",
        "update": 0,
        "first_position": call["start"],
        "tokens": len(experts),
        "layer_ids": list(routed.layer_ids),
        "num_experts": routed.num_experts,
        "top_k": top_k,
        "experts": experts.astype(kind).tobytes(),
        "policy_version": row["policy_version"],
    }
