"""Checksums of weights: time beside ``tensor.sum()`` of the same tensors, whole and sampled.

    OMP_NUM_THREADS=1 python benchmarks/checksums.py [--millions 64] [--device cpu]

Both run on the same data in turn; printed are medians of five. Bounds (CPU, one thread): a whole checksum takes at most 80 times
the sum, a sampled one of a sixteenth of the elements at most 8 times.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable

import torch

from rlaudit.capture.trainers.checksums import checksum_parameters

WHOLE_BOUND, SAMPLED_BOUND = 80.0, 8.0


def seconds(work: Callable[[], object], device: str) -> float:
    """Median wall time of five calls, the device's work included."""
    taken = []
    for _ in range(5):
        started = time.perf_counter()
        work()
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


def main() -> int:
    """Measure, print, and return 1 where a bound is missed on a CPU."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--millions", type=int, default=64)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    holds = True
    for dtype in (torch.bfloat16, torch.float32):
        tensor = torch.randn(options.millions, 1_000_000, device=options.device).to(dtype)
        checksum_parameters({"w": tensor[:1]})
        bare = seconds(tensor.sum, options.device)
        whole = seconds(lambda: checksum_parameters({"w": tensor}, sample_above=None), options.device)  # noqa: B023
        sampled = seconds(lambda: checksum_parameters({"w": tensor}, sample_above=tensor.numel() // 16), options.device)  # noqa: B023
        print(f"{dtype}: sum {bare * 1e3:.1f} ms, whole {whole * 1e3:.1f} ms ({whole / bare:.1f} x), sampled {sampled * 1e3:.1f} ms "
              f"({sampled / bare:.1f} x), whole {options.millions * 1e6 / whole / 1e6:.0f} million elements a second")  # fmt: skip
        holds &= options.device != "cpu" or (whole / bare <= WHOLE_BOUND and sampled / bare <= SAMPLED_BOUND)
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
