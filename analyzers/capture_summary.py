"""What a capture came to: processes, hooks, rows, joins and costs, from the run's own events and keys."""

from __future__ import annotations

import json
from typing import Any

import pyarrow.compute as pc

from rlaudit import schema
from rlaudit.analyzers.results import CapturedHook, CapturedProcess, CaptureSummary
from rlaudit.run import Run

Key = tuple[int, int, str]


def summarise_capture(run: Run) -> CaptureSummary:
    """The coverage table of a run. Reads events and keys only, no list columns."""
    events = run.read("events").to_pylist()
    processes = _processes(events)
    rows = {table.name: sum(p.rows.get(table.name, 0) for p in processes) for table in schema.TABLES if table.name != "events"}
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
        likely_reason=None if any(p.emitting for p in processes) else _likely_reason(processes, hooks, unreached),
    )


def _processes(events: list[dict[str, Any]]) -> tuple[CapturedProcess, ...]:
    found: dict[str, dict[str, Any]] = {}
    for event in sorted(events, key=lambda e: e["time"]):
        facts = found.setdefault(event["process"], {"rank": event["rank"], "started": {}, "hooks": [], "balance": {}})
        detail = json.loads(event["detail"]) if event["detail"] else {}
        if event["kind"] == "process_started":
            facts["started"] = detail
        elif event["kind"] == "hook_attached":
            facts["hooks"].append(event["name"])
        elif event["kind"] == "heartbeat":
            facts["balance"] = detail
    return tuple(_process(name, facts) for name, facts in found.items())


def _process(name: str, facts: dict[str, Any]) -> CapturedProcess:
    started, balance = facts["started"], facts["balance"]
    return CapturedProcess(
        process=name,
        rank=facts["rank"],
        program=started.get("program", "(forked)"),
        executable=started.get("executable", ""),
        hooks=tuple(facts["hooks"]),
        rows=balance.get("rows", {}),
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


def _likely_reason(processes: tuple[CapturedProcess, ...], hooks: tuple[CapturedHook, ...], unreached: tuple[str, ...]) -> str:
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
        return (
            "no Python process was started with the captured environment "
            "(python -S, an emptied environment and containers keep capture out)"
        )
    return "no process imported a framework that rlaudit knows, and none called rlaudit.record_*; see rlaudit hooks"
