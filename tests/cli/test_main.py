"""The command as a whole: instant, quiet where it should be, one message and the right exit status."""

from __future__ import annotations

import doctest
import importlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

COMMANDS = ["capture", "report", "query", "shell", "info", "hooks", "compact", "merge", "import", "export", "schema", "version"]
RLAUDIT = [sys.executable, "-m", "rlaudit.cli.main"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_with_an_example(cli, command: str) -> None:
    outcome = cli(command, "--help")
    assert outcome.status == 0
    assert f"rlaudit {command}" in outcome.out.split("Example", 1)[1]


def test_the_top_help_names_every_command(cli) -> None:
    out = cli("--help").out.split("Commands:", 1)[1]
    assert [line.split()[0] for line in out.splitlines() if line.strip()] == COMMANDS


def test_no_heavy_module_is_loaded_for_a_help_page() -> None:
    code = "import sys\nfrom rlaudit.cli.main import app\nprint(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert set(loaded).isdisjoint({"numpy", "pyarrow", "duckdb", "numba", "scipy", "torch", "transformers", "rich.console", "fsspec"})


def test_the_version_is_one_line(cli) -> None:
    import rlaudit

    assert cli("--version").out == f"rlaudit {rlaudit.__version__}\n"
    assert cli("version").out.startswith(f"rlaudit {rlaudit.__version__}\npython ")


def test_an_unknown_command_is_a_usage_error(cli) -> None:
    outcome = cli("repport")
    assert outcome.status == 2
    assert "repport" in outcome.err


def test_a_reader_that_goes_away_is_nothing_to_complain_about(run: Path) -> None:
    query = subprocess.Popen(
        [*RLAUDIT, "query", str(run), "select * from range(3000000)", "-f", "csv"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert query.stdout is not None and query.stderr is not None
    assert query.stdout.readline() == "range\n"
    query.stdout.close()
    assert query.stderr.read() == ""
    assert query.wait(timeout=60) == 1


def wait_for_work(pid: int) -> None:
    """Until the process has used two seconds of CPU: starting up takes less, the query more."""
    ticks = 2 * os.sysconf("SC_CLK_TCK")
    while int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11]) < ticks:
        time.sleep(0.1)


def test_ctrl_c_ends_a_running_query_with_130_and_no_traceback(run: Path) -> None:
    query = subprocess.Popen(
        [*RLAUDIT, "query", str(run), "select sum(a.range * b.range) from range(100000000) a, range(100000) b"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Started in the background, a test run has this signal ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL) and None,  # noqa: PLW1509
    )
    try:
        wait_for_work(query.pid)
        query.send_signal(signal.SIGINT)
        out, err = query.communicate(timeout=60)
    finally:
        query.kill()
    assert query.returncode == 130
    assert "Traceback" not in err
    assert out == ""


def test_a_folder_that_may_not_be_read_is_one_message(cli, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "private"
    folder.mkdir()
    (folder / "manifest.json").write_text("{}")
    (folder / "manifest.json").chmod(0)
    if os.access(folder / "manifest.json", os.R_OK):
        pytest.skip("this user may read everything")
    outcome = cli("info", folder)
    assert outcome.status == 2
    assert "permission denied" in outcome.err


def test_a_newer_run_format_is_refused_with_what_to_do(cli, tmp_path: Path) -> None:
    folder = tmp_path / "new"
    folder.mkdir()
    (folder / "manifest.json").write_text('{"format_version": 99, "run_id": "x"}')
    outcome = cli("report", folder)
    assert outcome.status == 2
    assert outcome.err.startswith("rlaudit: ")
    assert "version 99" in outcome.err
    assert "Install a newer rlaudit" in outcome.err


@pytest.mark.parametrize("module", ["rlaudit.cli.capture", "rlaudit.cli.results", "rlaudit.report.as_json", "rlaudit.report.text"])
def test_examples_in_the_code_hold(module: str) -> None:
    outcome = doctest.testmod(importlib.import_module(module))
    assert outcome.attempted > 0
    assert outcome.failed == 0
