"""Writes a large synthetic run in the product's own format, for benchmarks of the readers.

    python benchmarks/synthetic_run.py FOLDER --tokens 10_000_000

Responses of 4,096 to 12,288 tokens, 128 a step; Zipf-distributed token ids; log-probabilities of a peaked policy as random noise
(nothing that compresses better than a real run's); the trainer's differ by a factor exp(2 t), t Student's with 4 degrees of
freedom and scale 0.01. The
trainer's rows come in another order than the rollout's, as after a shuffle. Values are drawn from a fixed pool, so the run depends on the
seed alone.
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from rlaudit.manifest import Manifest
from rlaudit.segments import write_rows

POOL = 1 << 23
VOCABULARY = 151_936
NOISE = 0.01
Array = Any


class Pool(NamedTuple):
    """Random numbers that every step takes slices of: token ids, log-probabilities, differences."""

    tokens: Array
    logprobs: Array
    noise: Array


class Shape(NamedTuple):
    """Sizes of a run: sequences a step and the bounds of a response's length."""

    sequences: int = 128
    shortest: int = 4096
    longest: int = 12_288

    @property
    def tokens_a_step(self) -> int:
        """Expected response tokens of one step."""
        return self.sequences * (self.shortest + self.longest) // 2


_pool: Pool | None = None


def make_pool(seed: int) -> Pool:
    """The pool of a seed."""
    rng = np.random.default_rng(seed)
    weights = np.cumsum(1 / (np.arange(VOCABULARY) + 2.7))
    ranks = np.searchsorted(weights / weights[-1], rng.random(POOL)).clip(max=VOCABULARY - 1)
    ids = rng.permutation(VOCABULARY).astype(np.int32)
    logprobs = -np.exp(rng.normal(-3, 2.5, POOL)).clip(0, 30).astype(np.float32)
    return Pool(ids[ranks], logprobs, (rng.standard_t(4, POOL) * NOISE).astype(np.float32))


def lists(values: Array, lengths: Array) -> pa.ListArray:
    """Flat values as one list a length."""
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))


def write_step(folder: Path, step: int, seed: int, shape: Shape) -> int:
    """Write one step's sequences and scores; returns its response tokens."""
    global _pool  # noqa: PLW0603  (one pool for each worker process)
    _pool = _pool or make_pool(seed)
    rng = np.random.default_rng((seed, step))
    n = shape.sequences
    lengths = rng.integers(shape.shortest, shape.longest + 1, n)
    total = int(lengths.sum())
    place = rng.integers(0, POOL - total, 3)
    tokens, rollout, noise = (values[at : at + total] for values, at in zip(_pool, place, strict=True))
    trainer = rollout * np.exp(2 * noise)
    ids = [f"{step}-{i}" for i in range(n)]
    prompts = rng.integers(128, 512, n)
    sequences = {
        "attempt": repeat(0, n),
        "step": repeat(step, n),
        "sequence_id": ids,
        "group_id": [f"{step}-{i // 8}" for i in range(n)],
        "phase": ["train"] * n,
        "prompt_tokens": lists(_pool.tokens[: prompts.sum()], prompts),
        "response_tokens": lists(tokens, lengths),
        "loss_mask": lists(np.ones(total, np.bool_), lengths),
        "reward": rng.random(n),
        "temperature": repeat(1.0, n),
        "top_p": repeat(1.0, n),
    }
    write_rows(folder, "sequences", pa.table(sequences), "bench-0-0", step)
    order = rng.permutation(n)
    starts = np.cumsum(lengths) - lengths
    shuffled = np.concatenate([trainer[starts[i] : starts[i] + lengths[i]] for i in order])
    scores = [
        score_rows(step, ids, "rollout", rollout, lengths),
        score_rows(step, [ids[i] for i in order], "trainer", shuffled, lengths[order]),
    ]
    write_rows(folder, "scores", pa.concat_tables(scores), "bench-0-0", step)
    return total


def score_rows(step: int, ids: list[str], source: str, values: Array, lengths: Array) -> pa.Table:
    """Rows of the scores table."""
    n = len(ids)
    return pa.table(
        {
            "attempt": repeat(0, n),
            "step": repeat(step, n),
            "sequence_id": ids,
            "source": [source] * n,
            "update": repeat(0, n),
            "first_position": repeat(0, n),
            "logprobs": lists(values, lengths),
            "policy_updates": repeat(step, n),
            "forward": ["decode" if source == "rollout" else "recompute"] * n,
            "temperature": repeat(1.0, n),
            "logprob_mode": ["processed"] * n,
            "dtype": ["bfloat16"] * n,
            "backend": ["synthetic"] * n,
        }
    )


def repeat(value: Any, n: int) -> Any:
    """One value for n rows."""
    return np.full(n, value)


def write_run(folder: Path, tokens: int, *, seed: int = 0, shape: Shape | None = None, processes: int = 2) -> int:
    """Write a run of about ``tokens`` response tokens (whole steps) into the new folder ``folder``; returns how many there are."""
    shape = shape or Shape()
    folder.mkdir(parents=True)
    steps = max(1, round(tokens / shape.tokens_a_step))
    with ProcessPoolExecutor(processes) as pool:
        total = sum(pool.map(write_step, *zip(*[(folder, step, seed, shape) for step in range(steps)], strict=True)))
    Manifest(run_id=folder.name, command=["synthetic_run.py", str(tokens)], started=0.0, ended=0.0, exit_status=0).write(folder)
    return total


def main() -> None:
    """Write a run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tokens", type=int, default=10_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--short", action="store_true", help="responses of 16 to 48 tokens, 4,096 a step")
    options = parser.parse_args()
    begun = time.perf_counter()
    written = write_run(options.folder, options.tokens, seed=options.seed, shape=Shape(4096, 16, 48) if options.short else None)
    size = sum(path.stat().st_size for path in options.folder.rglob("*.parquet"))
    print(f"{written:,} response tokens, {size / written:.2f} bytes a token, {time.perf_counter() - begun:.1f} s")


if __name__ == "__main__":
    main()
