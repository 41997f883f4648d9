"""How instant the command line feels: ``rlaudit --help`` beside a bare interpreter that imports typer and rich.

    python benchmarks/cli.py [REPEATS]

Both sides are started in turn in one run, so that a busy machine slows both. Printed are the medians and, as the
result, the median of the ratios of neighbouring starts; the bound is 1.5.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

BOUND = 1.5
HELP = [sys.executable, "-c", "from rlaudit.cli.main import main; main()", "--help"]
BARE = [sys.executable, "-c", "import typer, rich"]


def seconds(command: list[str]) -> float:
    """Wall time of one start, output thrown away."""
    started = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - started


def main() -> int:
    """Measure, print, and return 1 where the bound is missed."""
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    for command in (HELP, BARE):  # byte code and file cache, on both sides
        seconds(command)
    pairs = [(seconds(HELP), seconds(BARE)) for _ in range(repeats)]
    ours, bare = (statistics.median(side) for side in zip(*pairs, strict=True))
    ratio = statistics.median(a / b for a, b in pairs)
    print(f"rlaudit --help        {ours * 1000:7.1f} ms")
    print(f"import typer, rich    {bare * 1000:7.1f} ms")
    print(f"ratio                 {ratio:7.2f}    (bound {BOUND}, {repeats} pairs)")
    return 0 if ratio <= BOUND else 1


if __name__ == "__main__":
    sys.exit(main())
