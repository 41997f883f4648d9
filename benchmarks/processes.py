"""A run of a thousand processes: how long it takes to open, summarise and report, before and after compaction.

    OMP_NUM_THREADS=1 python benchmarks/processes.py [--processes 1000] [--steps 10]

Every process writes its own segments of sequences, scores and events, as captured ranks do. Each measurement is a fresh process.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BOUND_SECONDS = 10.0
"""What "in seconds" means here, for the report after compaction on two cores."""

CHILD = """
import json, sys, time
began = time.perf_counter()
from rlaudit.run import Run
from rlaudit.analyzers.audit import build_report
from rlaudit.analyzers.capture_summary import summarise_capture
run = Run.open(sys.argv[1])
opened = time.perf_counter() - began
summary = summarise_capture(run)
summarised = time.perf_counter() - began - opened
report = build_report(run)
total = time.perf_counter() - began
print(json.dumps({"open": opened, "summary": summarised, "report": total - opened - summarised, "total": total,
                  "processes": len(summary.processes), "tokens": report.coverage.compared_tokens}))
"""


def make_run(folder: Path, processes: int, steps: int) -> None:
    """Segments of ``processes`` ranks with two sequences a step each."""
    import numpy as np
    import pyarrow as pa

    from rlaudit.arrow import arrow_schema
    from rlaudit.manifest import Manifest
    from rlaudit.segments import write_rows

    folder.mkdir()
    Manifest(run_id="processes").write(folder)
    rng = np.random.default_rng(0)
    for rank in range(processes):
        who = {"attempt": 0, "host": f"host{rank // 8}", "rank": rank, "process": f"host{rank // 8}-{rank}-0"}
        sequences, scores = [], []
        for step in range(steps):
            for number in range(2):
                key = {**who, "step": step, "sequence_id": f"{rank}-{step}-{number}"}
                rollout = -rng.exponential(0.3, 100).astype(np.float32)
                sequences.append({**key, "phase": "train", "prompt_tokens": [1, 2], "response_tokens": list(range(100))})
                for source, values in (
                    ("rollout", rollout),
                    ("trainer", rollout + np.float32(0.01) * rng.standard_normal(100, np.float32)),
                ):
                    scores.append(
                        {**key, "source": source, "update": 0, "first_position": 0, "logprobs": values.tolist(), "policy_updates": step}
                    )
        balance = {
            "rows": {"sequences": len(sequences), "scores": len(scores)},
            "hook_seconds": 0.1,
            "writer_seconds": 0.1,
            "process_seconds": 60.0,
        }
        events = [
            {
                **who,
                "time": rank,
                "kind": "process_started",
                "name": "process",
                "detail": json.dumps({"program": "train.py", "executable": "python"}),
            },
            {**who, "time": rank + 1, "kind": "heartbeat", "name": "process", "detail": json.dumps(balance)},
        ]
        for table, rows in (("sequences", sequences), ("scores", scores), ("events", events)):
            write_rows(folder, table, pa.Table.from_pylist(rows, schema=arrow_schema(table)), who["process"], 0)


def measure(folder: Path) -> dict[str, float]:
    """Seconds of opening, summarising and reporting in a fresh process."""
    done = subprocess.run([sys.executable, "-c", CHILD, str(folder)], check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout))


def show(label: str, files: int, seconds: dict[str, float]) -> None:
    """One line."""
    parts = ", ".join(f"{name} {seconds[name]:.2f} s" for name in ("open", "summary", "report"))
    print(f"  {label:<20}{files:>7,} files   {parts}   in all {seconds['total']:.2f} s")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=10)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rlaudit-benchmark-") as temporary:
        from rlaudit.compaction import compact

        folder = Path(temporary, "run")
        make_run(folder, options.processes, options.steps)
        before = measure(folder)
        print(f"{options.processes:,} processes, {options.steps} steps, {before['tokens']:,} tokens compared")
        show("as written", len(list(folder.rglob("*.parquet"))), before)
        began = time.perf_counter()
        compact(folder)
        print(f"  compaction took {time.perf_counter() - began:.2f} s")
        after = measure(folder)
        show("compacted", len(list(folder.rglob("*.parquet"))), after)
        same = (before["processes"], before["tokens"]) == (after["processes"], after["tokens"])
        holds = same and after["total"] <= BOUND_SECONDS
        print(f"  same processes and tokens before and after: {same}; bound {BOUND_SECONDS:g} s: {'holds' if holds else 'EXCEEDED'}")
        return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
