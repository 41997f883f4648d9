"""Time of linking engine calls to sequences, against one bare read of the columns that it needs.

    python benchmarks/linking.py [--sequences 20000] [--tokens 1000]

Prints both times and their ratio, and the peak memory of the linking process.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from rlaudit.arrow import arrow_schema
from rlaudit.manifest import Manifest
from rlaudit.run import Run
from rlaudit.segments import conform, write_rows


def lists(values: np.ndarray, width: int) -> pa.Array:
    """Rows of equal width."""
    offsets = pa.array(np.arange(0, len(values) + 1, width, dtype=np.int32))
    return pa.ListArray.from_arrays(offsets, pa.array(values))


def write(folder: Path, sequences: int, tokens: int, segments: int = 20) -> None:
    """A run of ``sequences`` responses to prompts of 100 tokens, each made by one call."""
    draw = np.random.default_rng(0)
    Manifest(run_id="linking", command=["synthetic"]).write(folder)
    per = sequences // segments
    for segment in range(segments):
        prompt = lists(draw.integers(0, 50_000, per * 100, dtype=np.int32), 100)
        response = lists(draw.integers(0, 50_000, per * tokens, dtype=np.int32), tokens)
        logprobs = lists(-draw.exponential(1.0, per * tokens).astype(np.float32), tokens)
        step = pa.array(np.full(per, segment, np.int32))
        ids = pa.array([f"s{segment}-{i}" for i in range(per)])
        common = {"attempt": pa.array(np.zeros(per, np.int32)), "phase": pa.array(["train"] * per)}
        own = pa.table({**common, "step": step, "sequence_id": ids, "prompt_tokens": prompt, "response_tokens": response})
        write_rows(folder, "sequences", conform(own, "sequences"), "host-1-0", segment)
        order = pa.array(draw.permutation(per))
        calls = pa.table({**common, "request_id": ids, "input_tokens": prompt, "output_tokens": response, "logprobs": logprobs}).take(order)
        write_rows(folder, "requests", conform(calls, "requests"), "host-2-0", segment)


def main() -> None:
    """Write the run, link it, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, default=20_000)
    parser.add_argument("--tokens", type=int, default=1000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, arguments.sequences, arguments.tokens)
        run = Run.open(folder)
        started = time.perf_counter()
        for table, columns in (
            ("sequences", ("attempt", "step", "sequence_id", "prompt_tokens", "response_tokens", "sampled_mask")),
            ("requests", tuple(arrow_schema("requests").names)),
        ):
            for segment in run.segments(table):
                run.read_segment(segment, columns)
        read = time.perf_counter() - started
        started = time.perf_counter()
        run.keep_derived()
        linked = time.perf_counter() - started
        rows = Run.open(folder).read("links", ("request_id",)).num_rows
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        tokens = arguments.sequences * arguments.tokens
        print(f"{tokens:,} tokens, {rows:,} of {arguments.sequences:,} calls linked")
        print(f"link {linked:.2f} s, read {read:.2f} s, ratio {linked / read:.1f}; peak {peak:,} MiB")


if __name__ == "__main__":
    main()
