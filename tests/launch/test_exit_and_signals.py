"""A captured command ends, is signalled, reads and writes as the same command does without capture; what it recorded is kept."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from rlaudit import Run
from tests.launch.place import Place
from tests.launch.terminal import Terminal

RECORD = "emit('row')\nrlaudit.step(0)\n"
Wrap = Callable[..., list[str]]


def both(
    place: Place, command: Sequence[str | Path], **popen: object
) -> tuple[subprocess.CompletedProcess[str], subprocess.CompletedProcess[str]]:
    """The command without and with capture."""
    return place.run(command, **popen), place.run(place.capturing(*command), **popen)  # type: ignore[arg-type]


def assert_kept(place: Place) -> None:
    """The row that the script recorded before its end is in the run."""
    assert Run.open(place.out).read("sequences")["sequence_id"].to_pylist() == ["row"]


def wait_for(path: Path, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("ending", "status"),
    [("sys.exit(7)", 7), ("os._exit(9)", 9), ("raise ValueError('loss is nan')", 1), ("os.abort()", -signal.SIGABRT)],
)
def test_the_exit_status_is_the_commands_own(place: Place, ending: str, status: int) -> None:
    script = place.script("train.py", f"import sys\n{RECORD}{ending}")
    plain, captured = both(place, ["python", script])
    assert captured.returncode == plain.returncode == status
    assert captured.stdout == plain.stdout
    assert Run.open(place.out).manifest.exit_status == status
    assert_kept(place)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1])
def test_a_signal_sent_to_what_the_user_started_ends_the_training_as_without_capture(place: Place, number: signal.Signals) -> None:
    script = place.script(
        "train.py", f"import time\n{RECORD}open('pid', 'w').write(str(os.getpid()))\nos.rename('pid', 'ready')\ntime.sleep(60)"
    )
    ends = []
    for command in (["python", script], place.capturing("python", script)):
        process = place.start(command)
        wait_for(place.folder / "ready")
        training = int((place.folder / "ready").read_text())
        process.send_signal(number)
        process.communicate(timeout=60)
        ends.append(process.returncode)
        deadline = time.monotonic() + 10
        while os.path.exists(f"/proc/{training}"):  # noqa: PTH110
            assert time.monotonic() < deadline, "the training outlived the signal"
            time.sleep(0.02)
        (place.folder / "ready").unlink()
    assert ends == [-number, -number]
    assert_kept(place)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_the_command_handles_reaches_it_once_and_its_own_status_is_returned(place: Place, number: signal.Signals) -> None:
    script = place.script(
        "train.py",
        "import signal, sys, time\n"
        f"{RECORD}"
        "got = []\n"
        f"signal.signal({int(number)}, lambda *_: got.append(1))\n"
        "open('ready', 'w').close()\n"
        "deadline = time.monotonic() + 30\n"
        "while not got and time.monotonic() < deadline: time.sleep(0.01)\n"
        "time.sleep(0.5)\n"
        "print('signals:', len(got)); sys.exit(3)",
    )
    process = place.start(place.capturing("python", script))
    wait_for(place.folder / "ready")
    process.send_signal(number)
    stdout, _ = process.communicate(timeout=60)
    assert (process.returncode, stdout) == (3, "signals: 1\n")
    assert_kept(place)


def test_a_command_that_a_signal_kills_from_within_is_seen_as_killed_by_it(place: Place) -> None:
    script = place.script("train.py", f"import signal\n{RECORD}os.kill(os.getpid(), signal.SIGKILL)")
    plain, captured = both(place, ["python", script])
    assert captured.returncode == plain.returncode == -signal.SIGKILL
    assert_kept(place)


def test_ctrl_c_typed_at_a_terminal_reaches_the_command_once(place: Place) -> None:
    script = place.script(
        "train.py",
        "import signal, sys, time\n"
        f"{RECORD}"
        "interrupts = []\n"
        "signal.signal(signal.SIGINT, lambda *_: interrupts.append(1))\n"
        "print('ready', flush=True)\n"
        "deadline = time.monotonic() + 1.5\n"
        "while time.monotonic() < deadline: time.sleep(0.05)\n"
        "print('interrupts:', len(interrupts)); sys.exit(5)",
    )
    for command in (["python", script], place.capturing("python", script)):
        with Terminal(place, command) as terminal:
            terminal.read_until("ready")
            terminal.type("\x03")
            assert "interrupts: 1" in terminal.read_to_end()
            assert terminal.status() == 5
    assert_kept(place)


def test_ctrl_c_that_the_command_does_not_handle_kills_it_and_the_shell_sees_that(place: Place) -> None:
    script = place.script("train.py", f"import time\n{RECORD}print('ready', flush=True)\ntime.sleep(60)")
    for command in (["python", script], place.capturing("python", script)):
        with Terminal(place, command) as terminal:
            terminal.read_until("ready")
            terminal.type("\x03")
            assert "KeyboardInterrupt" in terminal.read_to_end()
            assert terminal.status() == -signal.SIGINT
    assert_kept(place)


def test_the_command_has_the_terminal_as_its_own(place: Place) -> None:
    script = place.script(
        "train.py", "print([os.isatty(n) for n in (0, 1, 2)], os.tcgetpgrp(0) == os.getpgrp(), os.get_terminal_size())\nprint(input())"
    )
    shown = []
    for command in (["python", script], place.capturing("python", script)):
        with Terminal(place, command) as terminal:
            terminal.read_until("terminal_size")
            terminal.type("typed\n")
            text = terminal.read_to_end()
            shown.append(text[text.index("[") : text.index("lines=") + 8])
            assert text.count("typed") == 2, "echoed by the terminal, printed by the command"
            assert terminal.status() == 0
    assert shown[0] == shown[1]
    assert shown[0].startswith("[True, True, True] True")


def test_without_a_terminal_the_command_sees_none(place: Place) -> None:
    script = place.script("train.py", "print([os.isatty(n) for n in (0, 1, 2)])")
    plain, captured = both(place, ["python", script], given="")
    assert captured.stdout == plain.stdout == "[False, False, False]\n"


def test_input_and_output_pass_byte_for_byte(place: Place) -> None:
    script = place.script(
        "echo.py", "import sys\ndata = sys.stdin.buffer.read()\nsys.stdout.buffer.write(data[::-1])\nsys.stderr.buffer.write(data)"
    )
    data = bytes(range(256)) * 2000
    process = place.start(place.capturing("python", script), text=False, stdin=subprocess.PIPE)
    stdout, stderr = process.communicate(data, timeout=60)
    assert stdout == data[::-1]
    assert data in stderr, "what rlaudit says stands before and after it"


def test_files_that_the_shell_opened_for_the_command_reach_it(place: Place) -> None:
    read, write = os.pipe()
    os.write(write, b"through a descriptor")
    os.close(write)
    done = place.capture("python", "-c", f"import os; print(os.read({read}, 100))", pass_fds=(read,))
    os.close(read)
    assert done.stdout == "b'through a descriptor'\n"


def test_a_closed_standard_error_is_no_reason_not_to_train(place: Place) -> None:
    script = place.script("train.py", RECORD + "print('trained')")
    done = place.run(["bash", "-c", 'exec "$@" 2>&-', "bash", *place.capturing("python", script)])
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert_kept(place)


def test_a_script_without_an_interpreter_line_runs_as_in_a_shell(place: Place) -> None:
    job = place.script("job", "echo from sh; exit 4\n")
    job.chmod(0o755)
    done = place.capture(job)
    assert (done.returncode, done.stdout) == (4, "from sh\n")


def test_a_missing_interpreter_is_127_and_one_sentence(place: Place) -> None:
    job = place.script("job", "#!/no/such/interpreter\n")
    job.chmod(0o755)
    done = place.capture(job)
    assert done.returncode == 127
    assert "interpreter in its first line" in done.stderr


def test_an_unknown_command_is_127_and_one_sentence(place: Place) -> None:
    done = place.capture("no-such-command")
    assert (done.returncode, done.stdout, done.stderr) == (127, "", "rlaudit: no-such-command: command not found\n")
    assert not place.out.exists()


def test_the_kill_switch_keeps_capture_out_of_every_process(place: Place) -> None:
    script = place.script(
        "train.py", "import subprocess, sys\nprint(rlaudit.capturing(), [m for m in sys.modules if m.startswith('rlaudit.capture.')])"
    )
    done = place.capture("bash", "-c", f"python {script}; python -I {script}", variables={"RLAUDIT_DISABLE": "1"})
    assert done.stdout == "False []\nFalse []\n"
    assert "switched off by RLAUDIT_DISABLE" in done.stderr
    assert list((place.out / "spool").iterdir()) == []
