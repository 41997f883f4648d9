"""Capture reaches every Python process below the command, however it is started; the coverage table counts them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rlaudit import Run
from rlaudit.analyzers.capture_summary import summarise_capture
from tests.launch.place import Place, assert_reached


def test_bash_that_starts_python_which_replaces_pythonpath(place: Place) -> None:
    place.script("train.py", "emit('script')")
    job = place.script("job.sh", "export PYTHONPATH=/root/Megatron-LM\npython train.py\n")
    assert_reached(place, place.capture("bash", job), {"script"}, 1)


def test_an_isolated_interpreter(place: Place) -> None:
    script = place.script("train.py", "emit('isolated')")
    assert_reached(place, place.capture("python", "-I", script), {"isolated"}, 1)


def test_a_module(place: Place) -> None:
    place.script("train.py", "emit('module')")
    assert_reached(place, place.capture("python", "-m", "train"), {"module"}, 1)


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_the_processes_of_multiprocessing(place: Place, method: str) -> None:
    script = place.script(
        "train.py",
        "import multiprocessing, sys\n"
        "if __name__ == '__main__':\n"
        "    context = multiprocessing.get_context(sys.argv[1])\n"
        "    children = [context.Process(target=emit, args=(f'child{n}',)) for n in range(3)]\n"
        "    for child in children: child.start()\n"
        "    for child in children: child.join()\n"
        "    assert [child.exitcode for child in children] == [0, 0, 0]\n",
    )
    assert_reached(place, place.capture("python", script, method), {"child0", "child1", "child2"}, 3)


def test_a_forked_child_writes_under_its_own_name_when_its_parent_recorded_before(place: Place) -> None:
    script = place.script(
        "train.py",
        "import multiprocessing\n"
        "emit('parent')\n"
        "child = multiprocessing.get_context('fork').Process(target=emit, args=('child',))\n"
        "child.start(); child.join()\n"
        "emit('parent again')\n",
    )
    summary = assert_reached(place, place.capture("python", script), {"parent", "child", "parent again"}, 2)
    programs = {process.program: process.rows["sequences"] for process in summary.processes}
    assert programs == {str(script): 2, "(forked)": 1}


def test_a_bare_fork_that_ends_as_forks_do(place: Place) -> None:
    script = place.script(
        "train.py",
        "import os, sys\nchild = os.fork()\nif child == 0:\n    emit('child')\n    sys.exit(0)\nos.waitpid(child, 0)\nemit('parent')\n",
    )
    assert_reached(place, place.capture("python", script), {"parent", "child"}, 2)


def test_a_console_script_in_a_subprocess(place: Place) -> None:
    tool = place.script("train-tool.py", "emit('tool')").rename(place.folder / "train-tool")
    tool.write_text(f"#!{place.commands / 'python'}\n{tool.read_text()}")
    tool.chmod(0o755)
    script = place.script("train.py", f"import subprocess\nemit('parent')\nsubprocess.run([{str(tool)!r}], check=True)")
    assert_reached(place, place.capture("python", script), {"parent", "tool"}, 2)


def test_a_process_that_replaces_itself(place: Place) -> None:
    second = place.script("second.py", "emit('second')")
    first = place.script("first.py", f"import sys\nemit('first')\nos.execv(sys.executable, [sys.executable, {str(second)!r}])")
    done = place.capture("python", first)
    assert done.returncode == 0, done.stderr
    summary = summarise_capture(Run.open(place.out))
    assert {process.program for process in summary.processes} == {str(first), str(second)}
    assert "second" in Run.open(place.out).read("sequences")["sequence_id"].to_pylist()


def test_both_ways_in_make_one_record_of_the_process(place: Place) -> None:
    # The wheel's start-up file and the launcher's sitecustomize both run here, the start-up file twice where lib64 is linked to lib.
    script = place.script("train.py", "import sys; assert 'sitecustomize' in sys.modules; emit('once')")
    summary = assert_reached(place, place.capture("python", script), {"once"}, 1)
    assert len(summary.processes) == 1
    events = Run.open(place.out).read("events")["kind"].to_pylist()
    assert events.count("process_started") == 1


def test_an_interpreter_without_rlaudit_runs_on_and_is_named(place: Place, tmp_path: Path) -> None:
    other = shutil.which("python3", path="/usr/bin:/bin:/usr/local/bin")
    if other is None:
        pytest.skip("there is no other Python on this machine")
    script = place.script(
        "train.py", f"import subprocess\nemit('parent')\nprint(subprocess.check_output([{other!r}, '-c', 'print(6 * 7)']))"
    )
    done = place.capture("python", script)
    summary = assert_reached(place, done, {"parent"}, 1)
    assert done.stdout == "b'42\\n'\n"
    assert len(summary.unreached) == 1
