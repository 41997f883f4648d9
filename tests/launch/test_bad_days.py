"""Disks that fill up, folders that change under a run, clocks that jump: training ends as without capture, once said, and counted."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlaudit import Run
from rlaudit.analyzers.capture_summary import summarise_capture
from tests.launch.place import Place

STEPS = 40
# Every step records about 320 kB of random tokens and log-probabilities. Between steps the loop may wait to be told to go on.
LOOP = f"""
import time
import numpy as np
rng = np.random.default_rng(0)
loss = 0.0
for step in range({STEPS}):
    if step == 20:
        open("half", "w").close()
        while not os.path.exists("go on"): time.sleep(0.01)
    tokens = rng.integers(0, 1 << 30, (8, 4096))
    logprobs = -rng.exponential(1.0, (8, 4096)).astype("float32")
    loss += float(logprobs.mean())
    rlaudit.record_rollout(step=step, sequence_ids=[f"{{step}}-{{n}}" for n in range(8)], prompt_tokens=[[1]] * 8,
                           response_tokens=list(tokens), logprobs=list(logprobs))
    rlaudit.step(step)
print("loss", loss)
"""


@pytest.fixture
def script(place: Place) -> Path:
    return place.script("train.py", LOOP)


def plain_output(place: Place, script: Path) -> str:
    """What the loop prints without capture."""
    (place.folder / "go on").touch()
    done = place.run(["python", script])
    (place.folder / "go on").unlink()
    (place.folder / "half").unlink()
    assert done.returncode == 0, done.stderr
    return done.stdout


def at_half(place: Place, process: subprocess.Popen[str]) -> None:
    """Wait until the loop is half through."""
    deadline = time.monotonic() + 60
    while not (place.folder / "half").exists():
        assert process.poll() is None and time.monotonic() < deadline, "the loop did not get to its half"
        time.sleep(0.02)


def finish(place: Place, process: subprocess.Popen[str]) -> tuple[str, str]:
    """Let the loop go on; its output and everything on standard error."""
    (place.folder / "go on").touch()
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 0, stderr
    return stdout, stderr


def stops(stderr: str) -> list[str]:
    """Lines in which processes say that capture stopped or could not begin."""
    return [line for line in stderr.splitlines() if "capture stopped in process" in line or "nothing is captured in process" in line]


def kept_and_lost(run: Run) -> tuple[int, int]:
    """Sequences in the run, and sequences that the run says were lost."""
    summary = summarise_capture(run)
    return summary.rows["sequences"], sum(summary.dropped.get("sequences", {}).values())


@pytest.fixture
def small_disk(place: Place) -> Iterator[Path]:
    """A file system of 4 MB at the run's place."""
    place.out.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m,mode=0700", "rlaudit-test", place.out], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"a small file system can't be mounted here: {mounted.stderr.strip()}")
    yield place.out
    subprocess.run(["umount", "-l", place.out], check=True)


def test_a_disk_that_fills_up(place: Place, script: Path, small_disk: Path) -> None:
    expected = plain_output(place, script)
    process = place.start(place.capturing("python", script))
    stdout, stderr = finish(place, process)
    assert stdout == expected
    assert len(stops(stderr)) == 1
    assert "No space left on device" in stops(stderr)[0]
    run = Run.open(small_disk)
    kept, lost = kept_and_lost(run)
    assert kept > 0
    assert lost > 0
    assert kept + lost == STEPS * 8, "every sequence is there or counted"
    assert all(len(tokens) == 4096 for tokens in run.read("sequences", ["response_tokens"])["response_tokens"].to_pylist())


def test_a_disk_that_is_full_before_the_first_row(place: Place, script: Path, small_disk: Path) -> None:
    expected = plain_output(place, script)
    process = place.start(
        place.capturing("bash", "-c", f"head -c 8M /dev/zero > {small_disk}/filler; python {script}"),
    )
    stdout, stderr = finish(place, process)
    assert stdout == expected
    assert len(stops(stderr)) == 1


def test_a_run_folder_that_is_removed(place: Place, script: Path) -> None:
    expected = plain_output(place, script)
    process = place.start(place.capturing("python", script))
    at_half(place, process)
    shutil.rmtree(place.out)
    stdout, stderr = finish(place, process)
    assert stdout == expected
    assert len(stops(stderr)) == 1
    assert "removed" in stops(stderr)[0]
    assert "Traceback" not in stderr


def bound_by_permissions(command: list[str]) -> list[str]:
    """``command``, started so that a folder's permissions hold for it, which they do not for root."""
    if os.geteuid() != 0:
        return command
    if shutil.which("setpriv") is None:
        pytest.skip("permissions don't hold for root, and there is no setpriv to give the power up")
    return ["setpriv", "--bounding-set=-dac_override,-dac_read_search", *command]


def test_a_run_folder_that_turns_read_only_loses_nothing_as_long_as_its_file_is_open(place: Place, script: Path) -> None:
    expected = plain_output(place, script)
    process = place.start(bound_by_permissions(place.capturing("python", script, options=["--flush-seconds", "0.2"])))
    at_half(place, process)
    (sealed, *_) = wait_for_segments(place.out)
    assert sealed.suffix == ".parquet", "files were sealed and converted while the folder could be written"
    folders = [place.out, *(entry for entry in place.out.iterdir() if entry.is_dir())]
    for folder in folders:
        folder.chmod(0o500)
    stdout, stderr = finish(place, process)
    for folder in folders:
        folder.chmod(0o700)
    assert stdout == expected
    assert stops(stderr) == []
    assert stderr.count("could not be completed") == 1
    assert kept_and_lost(Run.open(place.out)) == (STEPS * 8, 0)


def wait_for_segments(run: Path) -> list[Path]:
    deadline = time.monotonic() + 30
    while not (found := sorted(run.glob("sequences/s*.parquet"))):
        assert time.monotonic() < deadline, "no segment was made while the command ran"
        time.sleep(0.05)
    return found


CLOCK = """
import time
_real, _calls = time.time, [0]
def jumping():
    # Back by a day with every call, and once to before 1970.
    _calls[0] += 1
    return -5.0 if _calls[0] == 3 else _real() - 86400.0 * _calls[0]
time.time = jumping
time.time_ns = lambda: int(jumping() * 1e9)
"""


def test_a_clock_that_jumps(place: Place, script: Path) -> None:
    # The user's own sitecustomize, which capture chains, plays the clock in every process below the command and in the launcher.
    (place.folder / "clock").mkdir()
    (place.folder / "clock" / "sitecustomize.py").write_text(CLOCK)
    expected = plain_output(place, script)
    process = place.start(place.capturing("python", script), {"PYTHONPATH": str(place.folder / "clock")})
    stdout, stderr = finish(place, process)
    assert stdout == expected
    assert stops(stderr) == []
    run = Run.open(place.out)
    assert kept_and_lost(run) == (STEPS * 8, 0)
    assert run.steps() == list(range(STEPS))
    assert run.manifest.started is not None and run.manifest.ended is not None
    assert 0 <= run.manifest.ended - run.manifest.started < 300


def blocked(*packages: str) -> str:
    """Code after which these packages can't be imported, as in an environment without them."""
    return f"import sys\nfor name in {packages!r}: sys.modules[name] = None\n"


def test_an_engines_environment_without_the_analysis_packages_records_all_the_same(place: Place) -> None:
    script = place.script(
        "engine.py", blocked("pyarrow", "duckdb", "scipy", "numba", "pandas", "typer", "rich", "fsspec") + "emit('engine')\n"
    )
    done = place.capture("python", script)
    assert done.returncode == 0, done.stderr
    assert Run.open(place.out).read("sequences")["sequence_id"].to_pylist() == ["engine"]


def test_an_environment_without_numpy_is_told_so_once_and_runs_on(place: Place) -> None:
    script = place.script("engine.py", blocked("numpy") + "emit('a')\nemit('b')\nrlaudit.step(0)\nprint(rlaudit.capturing())\n")
    done = place.capture("python", script)
    assert (done.returncode, done.stdout) == (0, "False\n")
    assert len(stops(done.stderr)) == 1
    assert "numpy" in stops(done.stderr)[0]


def test_a_process_that_outlives_the_command_is_waited_for_a_moment_and_then_left_to_itself(place: Place) -> None:
    server = place.script(
        "server.py", "import time\nemit('before')\nrlaudit.step(0)\nwhile not os.path.exists('go on'): time.sleep(0.02)\nemit('after')\n"
    )
    job = place.script(
        "job.sh", f"python {server} < /dev/null > /dev/null 2>&1 &\nuntil [ -e {place.emitted}/before ]; do sleep 0.05; done\nexit 6\n"
    )
    began = time.monotonic()
    done = place.capture("bash", job)
    assert done.returncode == 6
    assert time.monotonic() - began < 30
    pid = place.pids()["before"]
    assert f"1 of the command's processes still run ({pid})" in done.stderr
    names = Run.open(place.out).read("sequences", ["sequence_id"])["sequence_id"].to_pylist()
    assert names == ["before"], "what it has recorded is readable, from its own file"
    (place.folder / "go on").touch()
    while Path(f"/proc/{pid}").exists():
        time.sleep(0.02)
    compacted = place.run([str(place.commands / "rlaudit"), "compact", place.out])
    assert compacted.returncode == 0, compacted.stderr
    assert list((place.out / "spool").glob("*_*")) == []
    assert sorted(Run.open(place.out).read("sequences", ["sequence_id"])["sequence_id"].to_pylist()) == ["after", "before"]
