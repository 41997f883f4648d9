"""The demo replaces the runs of an earlier demo and nothing else."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

RLAUDIT = """#!/bin/sh
echo "$*" >> calls
case "$*" in
    *json*) echo '{"verdict": {"status": "OK", "sentence": "fine"}}' ;;
esac
"""


@pytest.fixture
def checkout(tmp_path: Path, examples: Path) -> Path:
    """A folder with the demo's script, and an ``rlaudit`` that only notes how it was called."""
    (tmp_path / "examples").mkdir()
    shutil.copy(examples / "demo.sh", tmp_path / "examples")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "rlaudit").write_text(RLAUDIT)
    (tmp_path / "bin" / "rlaudit").chmod(0o755)
    return tmp_path


def run_demo(checkout: Path) -> subprocess.CompletedProcess[str]:
    """Run the script from another folder, as a user may."""
    environment = {**os.environ, "PATH": f"{checkout / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run(
        ["bash", checkout / "examples" / "demo.sh"], capture_output=True, text=True, check=False, env=environment, cwd="/"
    )


def put_run(folder: Path, command: str) -> Path:
    """A run folder whose manifest names ``command``; returns a file inside it."""
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text(f'{{"command": ["python", "{command}"]}}')
    (folder / "kept").touch()
    return folder / "kept"


def test_the_runs_of_an_earlier_demo_are_replaced_and_others_stay(checkout: Path) -> None:
    earlier = [put_run(checkout / "runs" / name, "examples/grpo_tiny_moe.py") for name in ("demo", "demo-fp32")]
    other = put_run(checkout / "runs" / "mine", "train.py")
    assert run_demo(checkout).returncode == 0
    assert not any(file.exists() for file in earlier)
    assert other.exists()


def test_somebody_s_own_run_in_the_demo_s_place_stops_it_before_anything_is_removed(checkout: Path) -> None:
    earlier = put_run(checkout / "runs" / "demo-fp32", "examples/grpo_tiny_moe.py")
    mine = put_run(checkout / "runs" / "demo", "train.py")
    done = run_demo(checkout)
    assert done.returncode == 1
    assert "runs/demo is there already" in done.stderr
    assert mine.exists()
    assert earlier.exists()
    assert not (checkout / "calls").exists()


def test_the_demo_captures_both_dtypes_audits_both_and_ends_with_three_commands(checkout: Path) -> None:
    done = run_demo(checkout)
    calls = (checkout / "calls").read_text().splitlines()
    assert calls[:4] == [
        "capture --out runs/demo-fp32 -- python examples/grpo_tiny_moe.py --dtype float32",
        "capture --out runs/demo -- python examples/grpo_tiny_moe.py --dtype bfloat16",
        "report runs/demo-fp32",
        "report runs/demo",
    ]
    verdicts, _, suggestions = done.stdout.partition("Try next")
    assert verdicts.count("fine") == 2
    assert len([line for line in suggestions.splitlines() if line.startswith("  rlaudit ")]) == 3
