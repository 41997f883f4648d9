"""``--lossless`` and ``--flush-seconds`` from the command line to the run."""

from __future__ import annotations

import time
from pathlib import Path

from rlaudit import Run
from rlaudit.analyzers.capture_summary import summarise_capture
from tests.launch.place import Place

# 40 batches of about 0.6 MB each, much faster than they can be written with a queue of 1 MB.
BURST = """
import numpy as np
tokens, logprobs = np.arange(16 * 4096).reshape(16, 4096), np.zeros((16, 4096), "float32")
for step in range(40):
    rlaudit.record_rollout(step=step, sequence_ids=[f"{step}-{n}" for n in range(16)], prompt_tokens=[[1]] * 16,
                           response_tokens=list(tokens), logprobs=list(logprobs))
"""
TOTAL = 40 * 16


def test_without_lossless_whole_batches_are_dropped_and_counted(place: Place) -> None:
    done = place.capture("python", place.script("burst.py", BURST), options=["--queue-mb", "1"])
    assert done.returncode == 0, done.stderr
    run = Run.open(place.out)
    summary = summarise_capture(run)
    lost = summary.dropped["sequences"]["queue full"]
    assert 0 < lost < TOTAL
    assert summary.rows["sequences"] + lost == TOTAL
    assert lost % 16 == 0
    assert f"{lost:,} queue full" in done.stderr


def test_lossless_waits_for_the_writer_and_loses_nothing(place: Place) -> None:
    done = place.capture("python", place.script("burst.py", BURST), options=["--queue-mb", "1", "--lossless"])
    assert done.returncode == 0, done.stderr
    summary = summarise_capture(Run.open(place.out))
    assert (summary.rows["sequences"], summary.rows["scores"], summary.dropped) == (TOTAL, TOTAL, {})


def test_flush_seconds_turns_rows_into_parquet_while_the_command_runs_even_where_it_pauses(place: Place) -> None:
    script = place.script(
        "train.py", "import time\nemit('early')\nopen('recorded', 'w').close()\nwhile not os.path.exists('go on'): time.sleep(0.02)"
    )
    process = place.start(place.capturing("python", script, options=["--flush-seconds", "0.5"]))
    began = None
    try:
        deadline = time.monotonic() + 60
        while not list(place.out.glob("sequences/s*.parquet")):
            if began is None and (place.folder / "recorded").exists():
                began = time.monotonic()
            assert time.monotonic() < deadline, "nothing was converted while the command ran"
            time.sleep(0.02)
        assert process.poll() is None
        assert began is not None
        # Half a second until the file is sealed, one until the launcher looks, and what importing Parquet takes it.
        assert time.monotonic() - began < 8.0
    finally:
        (place.folder / "go on").touch()
        process.communicate(timeout=60)
    assert Run.open(place.out).read("sequences")["sequence_id"].to_pylist() == ["early"]


def test_without_it_rows_are_readable_from_the_spool_while_the_command_runs(place: Place) -> None:
    script = place.script(
        "train.py",
        "import time\nemit('early')\nrlaudit.step(0)\nopen('recorded', 'w').close()\nwhile not os.path.exists('go on'): time.sleep(0.02)",
    )
    process = place.start(place.capturing("python", script))
    try:
        wait_for(place.folder / "recorded")
        assert Run.open(place.out).read("sequences")["sequence_id"].to_pylist() == ["early"]
        assert not list(place.out.glob("sequences/*"))
    finally:
        (place.folder / "go on").touch()
        process.communicate(timeout=60)


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.02)
