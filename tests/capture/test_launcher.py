"""``rlaudit capture`` is transparent: status, signals, input and output are the command's own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlaudit import Run
from rlaudit.capture.launcher import CaptureOptions
from rlaudit.errors import BadOption

LAUNCH = (
    "import sys; from pathlib import Path; from rlaudit.capture.launcher import *; from rlaudit.errors import RlauditError\n"
    "try:\n    done = launch(CaptureOptions(out=Path(sys.argv[1])), sys.argv[2:])\n"
    "except RlauditError as e:\n    print(e, file=sys.stderr); sys.exit(e.exit_status)\n"
    "exit_like(done.returncode)"
)
LOOP = (
    "import rlaudit, sys\n"
    "rlaudit.record_rollout(step=0, sequence_ids=['a'], prompt_tokens=[[1]], response_tokens=[[2, 3]], logprobs=[[-1.0, -2.0]])\n"
)


def launched(out: Path, *command: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", LAUNCH, str(out), *command], capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload,no-any-return]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "run"


def test_a_python_script_is_captured_without_a_changed_line(out: Path) -> None:
    done = launched(out, sys.executable, "-c", LOOP + "print('done')")
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert done.stderr.startswith("rlaudit: capturing into ")
    run = Run.open(out)
    assert run.read("sequences")["response_tokens"].to_pylist() == [[2, 3]]
    assert list((out / "spool").iterdir()) == [], "everything was converted"
    assert (run.manifest.exit_status, run.manifest.started is not None, run.manifest.ended is not None) == (0, True, True)


def test_a_module_and_a_bash_script_are_captured(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(LOOP)
    (tmp_path / "job.sh").write_text(f"cd {tmp_path}\nexport PYTHONPATH={tmp_path}\n{sys.executable} -m loop\n")
    launched(tmp_path / "a", sys.executable, "-m", "loop", cwd=tmp_path)
    launched(tmp_path / "c", sys.executable, str(tmp_path / "loop.py"))
    for name in ("a", "c"):
        assert Run.open(tmp_path / name).steps() == [0]


@pytest.mark.parametrize(("ending", "status"), [("sys.exit(7)", 7), ("import os; os._exit(9)", 9), ("raise ValueError", 1)])
def test_the_exit_status_is_the_commands_own(out: Path, ending: str, status: int) -> None:
    assert launched(out, sys.executable, "-c", LOOP + ending).returncode == status
    assert Run.open(out).manifest.exit_status == status


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_command_that_a_signal_kills_is_seen_as_killed_by_it_and_its_data_is_kept(out: Path, number: signal.Signals) -> None:
    code = LOOP + f"import time, os; time.sleep(0.3); os.kill(os.getpid(), {int(number)})"
    assert launched(out, sys.executable, "-c", code).returncode == -number
    assert Run.open(out).steps() == [0]


def test_signals_are_passed_on_to_the_command(out: Path, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    code = (
        LOOP + "import signal, time, pathlib\n"
        "def bye(number, frame): print('asked to stop'); sys.exit(3)\n"
        f"signal.signal(signal.SIGTERM, bye); pathlib.Path({str(ready)!r}).touch(); time.sleep(30)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", LAUNCH, str(out), sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 20
    while not ready.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    stdout, _ = process.communicate(timeout=20)
    assert (process.returncode, stdout) == (3, "asked to stop\n")
    assert Run.open(out).steps() == [0]


def test_standard_input_reaches_the_command(out: Path) -> None:
    done = launched(out, sys.executable, "-c", "print(input()[::-1])", input="hello\n")
    assert done.stdout == "olleh\n"


def test_an_unknown_command_ends_in_127_and_one_sentence(out: Path) -> None:
    done = launched(out, "no-such-command-here")
    assert (done.returncode, done.stderr) == (127, "no-such-command-here: command not found\n")
    assert not out.exists()


def test_a_file_that_is_not_executable_ends_in_126_with_what_to_do(out: Path, tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_text("echo")
    done = launched(out, str(tmp_path / "job.sh"))
    assert done.returncode == 126
    assert "chmod +x" in done.stderr


def test_a_folder_that_holds_another_run_is_refused_before_anything_starts(out: Path, tmp_path: Path) -> None:
    launched(out, sys.executable, "-c", LOOP)
    before = (out / "manifest.json").read_text()
    done = launched(out, sys.executable, "-c", f"open({str(tmp_path / 'started')!r}, 'w')")
    assert done.returncode == 2
    assert "holds another run already" in done.stderr
    assert (out / "manifest.json").read_text() == before
    assert not (tmp_path / "started").exists()


def test_a_folder_with_other_files_is_refused(out: Path) -> None:
    out.mkdir()
    (out / "thesis.txt").write_text("x")
    assert "holds other files already" in launched(out, "true").stderr


def test_a_folder_that_cannot_be_made_is_refused_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    done = launched(tmp_path / "file" / "run", "echo", "started")
    assert (done.returncode, done.stdout) == (2, "")
    assert "nothing was started" in done.stderr


def test_files_of_a_run_are_private_to_the_user(out: Path) -> None:
    launched(out, sys.executable, "-c", LOOP)
    assert out.stat().st_mode & 0o777 == 0o700


def test_the_users_own_sitecustomize_still_runs(out: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.users_own = 42\n")
    done = launched(out, sys.executable, "-c", LOOP + "print(users_own)", env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert done.stdout == "42\n"
    assert Run.open(out).steps() == [0]


def test_an_interpreter_without_rlaudit_is_noted(out: Path) -> None:
    bare = "[sys.executable, '-S', '-c', 'import sitecustomize; print(1)']"  # no site-packages, so no rlaudit
    code = f"import subprocess, sys; print(subprocess.run({bare}, capture_output=True, text=True).stdout)"
    done = launched(out, sys.executable, "-c", code)
    assert "1" in done.stdout
    from rlaudit.analyzers.capture_summary import summarise_capture

    summary = summarise_capture(Run.open(out))
    assert summary.unreached == (sys.executable,)


def test_nothing_captured_has_a_likely_reason(out: Path) -> None:
    from rlaudit.analyzers.capture_summary import summarise_capture

    launched(out, sys.executable, "-c", "pass")
    assert "no process imported a framework" in (summarise_capture(Run.open(out)).likely_reason or "")


def test_the_manifest_holds_no_secret_of_the_command_line_or_the_environment(out: Path) -> None:
    secret = "hf_" + "a1B2" * 9
    command = [sys.executable, "-c", LOOP, "--api-key", "short1", f"--hub-token={secret}", "--model", "/data/models/" + "x" * 40, secret]
    launched(out, *command, env={**os.environ, "WANDB_API_KEY": secret, "NCCL_DEBUG": "INFO", "SGLANG_API_KEY": "short2"})
    text = "".join(p.read_text(errors="replace") for p in out.rglob("*") if p.is_file())
    assert secret not in text
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["command"][3:] == [
        "--api-key",
        "<redacted>",
        "--hub-token=<redacted>",
        "--model",
        "/data/models/" + "x" * 40,
        "<redacted>",
    ]
    assert manifest["environment"]["NCCL_DEBUG"] == "INFO"
    assert manifest["environment"]["SGLANG_API_KEY"] == "<redacted>"


def test_options_choose_tables_and_events_always_come_along() -> None:
    assert CaptureOptions(include=("scores",)).tables() == ("scores", "events")
    assert "routing" not in CaptureOptions(exclude=("routing",)).tables()
    with pytest.raises(BadOption, match="no table 'rooting'"):
        CaptureOptions(exclude=("rooting",)).tables()


@pytest.mark.parametrize("options", [{"sample": 0.0}, {"sample": 1.5}, {"routing_sample": -1.0}, {"tokens": "secret"}, {"max_bytes": 0}])
def test_values_out_of_range_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(BadOption):
        CaptureOptions(**options).check()  # type: ignore[arg-type]
