"""What a capture came to: processes, hooks, rows, joins and costs, from the run's own events and keys."""

from __future__ import annotations

import json
from typing import Any

import pyarrow.compute as pc

from rlaudit import schema
from rlaudit.analyzers.ranks import RankedProcess, rank_groups
from rlaudit.analyzers.results import CapturedHook, CapturedProcess, CaptureSummary, RankGroup
from rlaudit.run import Run

Key = tuple[int, int, str]


def summarise_capture(run: Run) -> CaptureSummary:
    """The coverage table of a run. Reads events and keys only, no list columns."""
    events = run.read("events").to_pylist()
    counted = _rows(run)
    processes, ranks = _processes(events, counted)
    rows = {
        table.name: sum(by_table.get(table.name, 0) for by_table in counted.values()) for table in schema.TABLES if table.name != "events"
    }
    joined_trainer, joined_rollout, not_consumed = _joins(run)
    hooks = _hooks(events, processes)
    started, ended = run.manifest.started, run.manifest.ended
    unreached = _unreached(run)
    return CaptureSummary(
        run=run.path,
        processes=processes,
        unreached=unreached,
        hooks=hooks,
        rows=rows,
        bytes={name: run.bytes(name) for name in rows},
        steps=len(run.steps()),
        joined_trainer=joined_trainer,
        joined_rollout=joined_rollout,
        not_consumed=not_consumed,
        dropped=_total_dropped(processes),
        stopped=tuple(sorted({e["name"] for e in events if e["kind"] == "capture_stopped"})),
        seconds=ended - started if started is not None and ended is not None else None,
        likely_reason=None if any(p.emitting for p in processes) else _likely_reason(run, processes, hooks, unreached),
        ranks=ranks,
    )


def _rows(run: Run) -> dict[str | None, dict[str, int]]:
    """Rows in the tables, by process and table: what is there, not what a process that may have been killed last said of itself.

    None: rows of runs that were not captured and name no process.
    """
    counted: dict[str | None, dict[str, int]] = {}
    for table in schema.TABLES:
        if table.name != "events":
            for entry in pc.value_counts(run.read(table.name, ["process"])["process"]).to_pylist():
                counted.setdefault(entry["values"], {})[table.name] = entry["counts"]
    return counted


def _processes(
    events: list[dict[str, Any]], rows: dict[str | None, dict[str, int]]
) -> tuple[tuple[CapturedProcess, ...], tuple[RankGroup, ...]]:
    found: dict[str, dict[str, Any]] = {name: _unknown(None, None) for name in rows if name is not None}
    for event in events:
        facts = found.setdefault(event["process"], _unknown(event["host"], event["attempt"]))
        facts["host"], facts["attempt"] = event["host"], event["attempt"]
        facts["rank"] = event["rank"] if event["rank"] is not None else facts["rank"]
        detail = json.loads(event["detail"]) if event["detail"] else {}
        if event["kind"] == "process_started":
            facts["started"] = detail
        elif event["kind"] == "hook_attached":
            facts["hooks"].append(event["name"])
        elif event["kind"] == "heartbeat" and detail.get("beat", 0) >= facts["balance"].get("beat", 0):
            facts["balance"] = detail  # the last one by its own count: clocks may be set back
    processes = tuple(
        _process(name, facts, rows.get(name, facts["balance"].get("rows", {}) if None in rows else {})) for name, facts in found.items()
    )
    ranked = (
        RankedProcess(
            facts["attempt"], facts["host"], facts["balance"].get("ranks") or facts["started"].get("ranks") or {}, process.emitting
        )
        for facts, process in zip(found.values(), processes, strict=True)
    )
    return processes, rank_groups(ranked)


def _unknown(host: str | None, attempt: int | None) -> dict[str, Any]:
    return {"host": host, "attempt": attempt, "rank": None, "started": {}, "hooks": [], "balance": {}}


def _process(name: str, facts: dict[str, Any], rows: dict[str, int]) -> CapturedProcess:
    started, balance = facts["started"], facts["balance"]
    return CapturedProcess(
        process=name,
        rank=facts["rank"],
        program=started.get("program", "(forked)"),
        executable=started.get("executable", ""),
        hooks=tuple(facts["hooks"]),
        rows=rows,
        dropped=balance.get("dropped", {}),
        fired=balance.get("fired", {}),
        failures={label: (count, message) for label, (count, message) in balance.get("failures", {}).items()},
        hook_seconds=balance.get("hook_seconds"),
        writer_seconds=balance.get("writer_seconds"),
        process_seconds=balance.get("process_seconds"),
    )


def _hooks(events: list[dict[str, Any]], processes: tuple[CapturedProcess, ...]) -> tuple[CapturedHook, ...]:
    grouped: dict[tuple[str, str, str | None], list[dict[str, Any]]] = {}
    for event in events:
        if event["kind"] in ("hook_attached", "hook_refused"):
            grouped.setdefault((event["name"], event["kind"], event["message"]), []).append(json.loads(event["detail"]))
    hooks = []
    for (adapter, kind, message), details in sorted(grouped.items(), key=lambda item: item[0][:2]):
        label = f"{adapter}: "
        hooks.append(
            CapturedHook(
                adapter=adapter,
                distribution=details[0]["distribution"],
                version=details[0]["version"],
                state="attached" if kind == "hook_attached" else "refused",
                processes=len(details),
                fired=sum(count for p in processes for name, count in p.fired.items() if name.startswith(label)),
                failures=sum(count for p in processes for name, (count, _) in p.failures.items() if name.startswith(label)),
                reason=message,
            )
        )
    return tuple(hooks)


def _joins(run: Run) -> tuple[tuple[int, int], tuple[int, int], int]:
    """(trainer rows with a rollout, all), (training rollouts with a trainer row, all), rollouts of other phases."""
    phases: dict[Key, str] = {}
    keys = ["attempt", "step", "sequence_id"]
    for row in run.read("sequences", [*keys, "phase"]).to_pylist():
        phases[row["attempt"], row["step"], row["sequence_id"]] = row["phase"]
    scores = run.read("scores", [*keys, "source"], filters=pc.field("source").isin(["rollout", "trainer", "update"]))
    rollouts: set[Key] = set()
    trained: set[Key] = set()
    for row in scores.to_pylist():
        (rollouts if row["source"] == "rollout" else trained).add((row["attempt"], row["step"], row["sequence_id"]))
    training = {key for key in rollouts if phases.get(key, "train") == "train"}
    return (len(trained & rollouts), len(trained)), (len(training & trained), len(training)), len(rollouts - training)


def _total_dropped(processes: tuple[CapturedProcess, ...]) -> dict[str, dict[str, int]]:
    total: dict[str, dict[str, int]] = {}
    for process in processes:
        for table, reasons in process.dropped.items():
            for reason, count in reasons.items():
                into = total.setdefault(table, {})
                into[reason] = into.get(reason, 0) + count
    return total


def _unreached(run: Run) -> tuple[str, ...]:
    """Interpreters below the command in which rlaudit isn't installed."""
    return tuple(sorted({json.loads(text)["executable"] for text in run.notes("spool/unreached")}))


def _likely_reason(run: Run, processes: tuple[CapturedProcess, ...], hooks: tuple[CapturedHook, ...], unreached: tuple[str, ...]) -> str:
    refused = [hook for hook in hooks if hook.state == "refused"]
    if refused:
        return f"{refused[0].adapter} refused to attach: {refused[0].reason}"
    dropped = _total_dropped(processes)
    if dropped:
        return "every row was dropped or skipped: " + "; ".join(
            f"{table}: {reason}" for table, reasons in dropped.items() for reason in reasons
        )
    attached = [hook for hook in hooks if hook.state == "attached"]
    if attached:
        return f"{', '.join(hook.adapter for hook in attached)} attached, but the code that they observe never ran"
    if unreached:
        return f"rlaudit is not installed in the environment of {unreached[0]}; install it there"
    if not processes:
        disabled = run.manifest.environment.get("RLAUDIT_DISABLE") == "1"
        return (
            "RLAUDIT_DISABLE=1 in the environment switched it off"
            if disabled
            else (
                "no Python process was started with the captured environment "
                "(python -S, an emptied environment and containers keep capture out)"
            )
        )
    return "no process imported a framework that rlaudit knows, and none called rlaudit.record_*; see rlaudit hooks"
