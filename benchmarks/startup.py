"""What capture costs a Python process that does no reinforcement learning: its start, beside that of a bare interpreter.

    python benchmarks/startup.py [PAIRS]

Below a captured command every Python process runs the bootstrap: a launcher's helpers, a build tool, each of Ray's own processes.
Both sides are ``python -c pass`` of the same environment, once as ``rlaudit capture`` starts it (variables, PYTHONPATH, a note
written into a run folder) and once without. They are started in turn in one run, so that a busy machine slows both. Printed are
the medians and, as the result, the median of the differences of neighbouring starts; the bound is 30 ms.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rlaudit import schema
from rlaudit.capture.config import CaptureConfig
from rlaudit.capture.site_folder import SITE_FOLDER
from rlaudit.capture.variables import VARIABLE

BOUND_MS = 30.0
COMMAND = [sys.executable, "-c", "pass"]


def milliseconds(environment: dict[str, str]) -> float:
    """Wall time from starting an interpreter to its end."""
    started = time.perf_counter()
    subprocess.run(COMMAND, env=environment, check=True)
    return (time.perf_counter() - started) * 1000


def main() -> int:
    """Measure, print, and return 1 where the bound is missed."""
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 41
    bare = {name: value for name, value in os.environ.items() if not name.startswith(("RLAUDIT", "PYTHON"))}
    with tempfile.TemporaryDirectory() as folder:
        config = CaptureConfig(run=folder, run_id="benchmark", tables=tuple(table.name for table in schema.TABLES))
        captured = {**bare, VARIABLE: config.to_variable(), "PYTHONPATH": SITE_FOLDER}
        for environment in (captured, bare):  # byte code and file cache, on both sides
            milliseconds(environment)
        pairs = [(milliseconds(captured), milliseconds(bare)) for _ in range(repeats)]
        notes = len(list(Path(folder, "spool").glob("*.spool")))
    if notes != repeats + 1:
        print(f"the bootstrap ran in {notes} of {repeats + 1} processes: there is nothing to measure")
        return 1
    ours, plain = (statistics.median(side) for side in zip(*pairs, strict=True))
    tax = statistics.median(a - b for a, b in pairs)
    print(f"python -c pass, captured    {ours:7.1f} ms")
    print(f"python -c pass, bare        {plain:7.1f} ms")
    print(f"start-up tax                {tax:7.1f} ms   (bound {BOUND_MS:.0f} ms, {repeats} pairs)")
    return 0 if tax <= BOUND_MS else 1


if __name__ == "__main__":
    sys.exit(main())
