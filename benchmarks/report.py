"""The core report beside one bare DuckDB pass over the same files, each in a fresh process: time and peak memory.

    python benchmarks/report.py [--sizes 10 100] [--repeats 3] [--folder FOLDER]

Bounds (issue 2): time <= 1.5 x DuckDB's, peak memory <= 1 GiB, and at the largest size <= 1.3 x that at the smallest. Exits with 1
where one
is missed. The report does far more than the bare pass: integrity, quantiles, estimators, intervals, findings. Both use two
threads; files are in
the page cache; kernels are compiled before (how long that takes is printed).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

OURS = """
import json, resource, sys, time
import pyarrow
pyarrow.array([0])  # imports pandas where it is installed; imports are not timed on either side
from rlaudit.run import Run
from rlaudit.analyzers.audit import build_report
begun, cpu = time.perf_counter(), time.process_time()
report = build_report(Run.open(sys.argv[1]))
seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"seconds": seconds, "cpu": cpu, "peak": peak, "tokens": report.coverage.compared_tokens, "mean":
report.overall["logp_diff_mean"],
                  "pearson": report.overall["pearson_prob"], "status": report.verdict.status}))
"""
BARE = """
import json, resource, sys, time
import duckdb
con = duckdb.connect()
con.execute("SET threads = 2; SET enable_progress_bar = false")
begun, cpu = time.perf_counter(), time.process_time()
rows = con.execute(f'''
WITH pairs AS (
    SELECT a.step, a.logprobs AS r, b.logprobs AS t
    FROM (SELECT * FROM '{sys.argv[1]}/scores/*.parquet' WHERE source = 'rollout') a
    JOIN (SELECT * FROM '{sys.argv[1]}/scores/*.parquet' WHERE source = 'trainer') b USING (step, sequence_id)
), tokens AS (SELECT step, unnest(r) AS r, unnest(t) AS t FROM pairs)
SELECT step, count(*), corr(exp(r), exp(t)), avg(abs(r - t)), stddev(abs(r - t)), max(abs(r - t)) FROM tokens GROUP BY step
''').fetchall()
seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
tokens = sum(row[1] for row in rows)
print(json.dumps({"seconds": seconds, "cpu": cpu, "peak": peak, "tokens": tokens, "mean": sum(row[1] * row[3] for row in rows) / tokens}))
"""
WARM = """
import time
from rlaudit.analyzers.compiled import kernels, kernels_cached
cached, begun = kernels_cached(), time.perf_counter()
kernels()
print(f"kernels {'loaded' if cached else 'compiled'} in {time.perf_counter() - begun:.1f} s")
"""
TIME_RATIO, PEAK_BYTES, PEAK_GROWTH = 1.5, 1 << 30, 1.3


class Measurement(NamedTuple):
    """The quickest of several runs. peak: largest resident set of any of them, in bytes."""

    seconds: float
    cpu: float
    peak: int
    tokens: int
    mean: float


def run(code: str, *arguments: str) -> str:
    """Standard output of ``code`` in a fresh interpreter."""
    return subprocess.run([sys.executable, "-c", code, *arguments], check=True, capture_output=True, text=True).stdout


def measure(code: str, folder: Path, repeats: int) -> Measurement:
    """Run ``code`` on a run's folder ``repeats`` times."""
    found = [json.loads(run(code, str(folder))) for _ in range(repeats)]
    best = min(found, key=lambda result: result["seconds"])
    return Measurement(best["seconds"], best["cpu"], max(result["peak"] for result in found), best["tokens"], best["mean"])


def compare(folder: Path, repeats: int) -> tuple[Measurement, Measurement]:
    """Ours and the bare pass on one run; they must agree on what they compared."""
    for path in folder.rglob("*.parquet"):  # into the page cache
        path.read_bytes()
    bare, ours = measure(BARE, folder, repeats), measure(OURS, folder, repeats)
    if ours.tokens != bare.tokens or abs(ours.mean - bare.mean) > 1e-6 * bare.mean:
        raise SystemExit(
            f"{folder}: the two disagree: {ours.tokens:,} tokens, mean {ours.mean!r}; {bare.tokens:,} tokens, mean {bare.mean!r}"
        )
    return ours, bare


def main() -> None:
    """Write the runs, measure, print a table and judge."""
    from synthetic_run import Shape, write_run

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sizes", type=float, nargs="+", default=[10, 100], help="million tokens")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="keep the runs here and use those that are there")
    parser.add_argument("--short", action="store_true", help="responses of 16 to 48 tokens (many rows) instead of 4,096 to 12,288")
    options = parser.parse_args()
    print(run(WARM).strip())
    peaks, failed = [], []
    with tempfile.TemporaryDirectory(prefix="rlaudit-bench-") as scratch:
        for size in options.sizes:
            folder = Path(options.folder or scratch, f"{size:g}M{'-short' if options.short else ''}")
            if not folder.exists():
                write_run(folder, int(size * 1e6), shape=Shape(4096, 16, 48) if options.short else None)
            ours, bare = compare(folder, options.repeats)
            ratio = ours.seconds / bare.seconds
            print(
                f"{ours.tokens:>12,} tokens: report {ours.seconds:6.2f} s ({ours.cpu:.1f} CPU), peak {ours.peak / 2**20:5.0f} MiB; "
                f"bare DuckDB {bare.seconds:6.2f} s ({bare.cpu:.1f} CPU), peak {bare.peak / 2**20:5.0f} MiB; time ratio {ratio:.2f}"
            )
            peaks.append(ours.peak)
            failed += [f"time ratio {ratio:.2f} > {TIME_RATIO} at {size:g}M"] if ratio > TIME_RATIO else []
            failed += [f"peak {ours.peak / 2**20:.0f} MiB > 1 GiB at {size:g}M"] if ours.peak > PEAK_BYTES else []
    if len(peaks) > 1:
        growth = peaks[-1] / peaks[0]
        print(f"peak memory at the largest size over the smallest: {growth:.2f}")
        failed += [f"memory growth {growth:.2f} > {PEAK_GROWTH}"] if growth > PEAK_GROWTH else []
    print("missed: " + "; ".join(failed) if failed else "all bounds met")
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
