"""``kill -9`` at random moments of a real training: every run opens, and every step that had ended is in it, whole."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from rlaudit import Run
from tests.launch.place import Place

pytestmark = pytest.mark.integration
SCRIPT = Path(__file__).with_name("policy_gradient.py")
KILLS = 20
STEPS = 100_000  # more than any of them lives to see
FLUSHED = 0.25
"""Seconds. The end of a step waits for the writer, though not for long; what ended this long before the kill must be there."""


class Kill(NamedTuple):
    """When: seconds after the first step or, before it, after the start of Python; whom; with which interval between files."""

    number: int
    in_loop: bool
    after: float
    launcher: bool
    flush_seconds: float


def kills() -> list[Kill]:
    chance = random.Random(20240607)
    found = []
    for number in range(KILLS):
        in_loop = number % 5 != 0  # a fifth of them hits the import of torch
        after = chance.uniform(0.5, 5.0) if in_loop else chance.uniform(0.0, 1.5)
        # Every fourth hits the launcher, whose death the command shares.
        found.append(Kill(number, in_loop, after, launcher=number % 4 == 3, flush_seconds=0.3 if number % 2 else 300.0))
    return found


class Ended(NamedTuple):
    """A step of which the loop said that it had ended: when, and the digest of what it recorded."""

    step: int
    when: float
    digest: str


def ended_steps(progress: Path) -> list[Ended]:
    lines = progress.read_text().splitlines() if progress.exists() else []
    return [Ended(int(step), float(when), digest) for step, when, digest in (line.split() for line in lines)]


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    while not path.exists() or not path.read_text():
        assert process.poll() is None, "it ended too early"
        time.sleep(0.01)


@pytest.mark.parametrize("kill", kills(), ids=lambda kill: f"{kill.number}-{kill.after:.2f}s{'-launcher' if kill.launcher else ''}")
def test_every_step_that_had_ended_is_in_the_run(torch_place: Place, kill: Kill) -> None:
    place, progress, started = torch_place, torch_place.folder / "progress", torch_place.folder / "started"
    # exec: the training has the process id that the shell wrote down.
    job = place.script("job.sh", f"echo $$ > {started}\nexec python {SCRIPT} {STEPS} {progress}\n")
    process = place.start(place.capturing("bash", job, options=["--flush-seconds", str(kill.flush_seconds)]))
    wait_for(progress if kill.in_loop else started, process)
    time.sleep(kill.after)
    at = time.monotonic()
    os.kill(process.pid if kill.launcher else int(started.read_text()), signal.SIGKILL)
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL, stderr

    run = Run.open(place.out)
    assert run.torn == []
    flushed = {ended.step: ended.digest for ended in ended_steps(progress) if ended.when < at - FLUSHED}
    assert bool(flushed) == kill.in_loop
    there = recorded(run)
    assert {step: there.get(step) for step in flushed} == flushed
    assert_no_row_is_torn(run)


def recorded(run: Run) -> dict[int, str | None]:
    """Digest of each step as the loop computes it; None where a row is missing or there twice."""
    digests: dict[int, str | None] = {}
    sequences = by_step(run.read("sequences", ["step", "sequence_id", "response_tokens"]).to_pylist())
    scores = by_step(run.read("scores", ["step", "sequence_id", "source", "logprobs"]).to_pylist())
    for step, rows in sequences.items():
        rollout, trainer = ([row for row in scores.get(step, []) if row["source"] == source] for source in ("rollout", "trainer"))
        columns = ((rows, "response_tokens", np.int32), (rollout, "logprobs", np.float32), (trainer, "logprobs", np.float32))
        names = [f"0-{step}-{n}" for n in range(8)]
        whole = all(sorted(row["sequence_id"] for row in found) == names for found, _, _ in columns)
        arrays = [np.array([row[name] for row in sorted(found, key=lambda row: row["sequence_id"])], kind) for found, name, kind in columns]
        digests[step] = hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest() if whole else None
    return digests


def by_step(rows: list[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    steps: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        steps.setdefault(row["step"], []).append(row)
    return steps


def assert_no_row_is_torn(run: Run) -> None:
    """Every row has all of its tokens or numbers, once, whichever step it is of."""
    lengths = {len(tokens) for tokens in run.read("sequences", ["response_tokens"])["response_tokens"].to_pylist()}
    lengths |= {len(values) for values in run.read("scores", ["logprobs"])["logprobs"].to_pylist()}
    assert lengths <= {24}
    names = run.read("sequences", ["sequence_id"])["sequence_id"].to_pylist()
    assert len(names) == len(set(names))
    keys = [(row["sequence_id"], row["source"]) for row in run.read("scores", ["sequence_id", "source"]).to_pylist()]
    assert len(keys) == len(set(keys))
