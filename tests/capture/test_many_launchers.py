"""Launchers of one job meet in one run; a restarted job goes on in it as its next attempt; strangers are refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlaudit import Run
from rlaudit.capture.job import job_identity
from rlaudit.capture.process import process_facts

LAUNCH = (
    "import sys, socket; from pathlib import Path\n"
    "if sys.argv[2]: socket.gethostname = lambda: sys.argv[2]\n"
    "from rlaudit.capture.launcher import *; from rlaudit.errors import RlauditError\n"
    "out = Path(sys.argv[1]) if sys.argv[1] else None\n"
    "options = CaptureOptions(out=out, resume='--resume' in sys.argv[3], tokens='hashed' if 'hashed' in sys.argv[3] else 'plain')\n"
    "try:\n    done = launch(options, sys.argv[4:])\n"
    "except RlauditError as e:\n    print(e, file=sys.stderr); sys.exit(e.exit_status)\n"
    "exit_like(done.returncode)"
)
LOOP = "import rlaudit\nrlaudit.record_rollout(step=3, sequence_ids=['a'], prompt_tokens=[[1]], response_tokens=[[2]], logprobs=[[-1.0]])\n"


def launched(
    out: Path | str, *, host: str = "", options: str = "", cwd: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", LAUNCH, str(out), host, options, sys.executable, "-c", LOOP],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env={**os.environ, **variables},
    )


def attempts(out: Path) -> list[int]:
    return sorted(Run.open(out).read("sequences")["attempt"].to_pylist())


def test_two_nodes_of_one_scheduler_job_write_one_run(tmp_path: Path) -> None:
    for host in ("node1", "node2"):
        done = launched(tmp_path / "run", host=host, SLURM_JOB_ID="4711")
        assert done.returncode == 0, done.stderr
    assert "(joined)" in done.stderr
    run = Run.open(tmp_path / "run")
    assert run.manifest.job == "slurm:4711"
    assert attempts(tmp_path / "run") == [0, 0]
    assert len(list((tmp_path / "run" / "launchers").glob("*.json"))) == 2


def test_a_requeued_job_on_the_same_node_is_the_next_attempt(tmp_path: Path) -> None:
    for _ in range(3):
        assert launched(tmp_path / "run", host="node1", SLURM_JOB_ID="4711").returncode == 0
    assert attempts(tmp_path / "run") == [0, 1, 2]
    assert Run.open(tmp_path / "run").manifest.attempts == 3


def test_both_nodes_of_a_requeued_job_are_in_the_same_attempt(tmp_path: Path) -> None:
    for host in ("node1", "node2", "node1", "node2"):
        assert launched(tmp_path / "run", host=host, SLURM_JOB_ID="4711").returncode == 0
    assert attempts(tmp_path / "run") == [0, 0, 1, 1]


def test_resume_goes_on_in_any_run_and_keeps_what_is_there(tmp_path: Path) -> None:
    launched(tmp_path / "run")
    done = launched(tmp_path / "run", options="--resume")
    assert done.returncode == 0, done.stderr
    assert "(attempt 1)" in done.stderr
    assert attempts(tmp_path / "run") == [0, 1]
    records = [json.loads(p.read_text()) for p in (tmp_path / "run" / "launchers").glob("*.json")]
    assert sorted(record["attempt"] for record in records) == [0, 1]
    assert all(record["exit_status"] == 0 for record in records)


def test_resume_of_a_run_that_does_not_exist_starts_it(tmp_path: Path) -> None:
    assert launched(tmp_path / "run", options="--resume").returncode == 0
    assert attempts(tmp_path / "run") == [0]


@pytest.mark.parametrize("job", [{}, {"SLURM_JOB_ID": "2"}])
def test_another_job_is_refused(tmp_path: Path, job: dict[str, str]) -> None:
    launched(tmp_path / "run", SLURM_JOB_ID="1")
    done = launched(tmp_path / "run", **job)
    assert done.returncode == 2
    assert "holds another run already" in done.stderr
    assert "--resume" in done.stderr


def test_launchers_of_a_job_find_each_other_without_a_folder_given(tmp_path: Path) -> None:
    for host in ("node1", "node2"):
        assert launched("", host=host, cwd=tmp_path, SLURM_JOB_ID="8").returncode == 0
    assert attempts(tmp_path / "runs" / "slurm-8") == [0, 0]


def test_hashed_tokens_need_a_shared_key_to_be_joined(tmp_path: Path) -> None:
    launched(tmp_path / "run", host="a", options="hashed", SLURM_JOB_ID="1", RLAUDIT_TOKEN_KEY="ab" * 16)
    done = launched(tmp_path / "run", host="b", options="hashed", SLURM_JOB_ID="1")
    assert (done.returncode, "RLAUDIT_TOKEN_KEY" in done.stderr) == (2, True)
    assert launched(tmp_path / "run", host="b", options="hashed", SLURM_JOB_ID="1", RLAUDIT_TOKEN_KEY="ab" * 16).returncode == 0
    tokens = Run.open(tmp_path / "run").read("sequences")["response_tokens"].to_pylist()
    assert tokens[0] == tokens[1] != [2]


def test_a_restart_by_torchrun_is_an_attempt_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    assert process_facts(1)["attempt"] == 3


@pytest.mark.parametrize(
    ("command", "environment", "identity"),
    [
        (["torchrun", "--rdzv_id", "x9", "t.py"], {}, "rendezvous:x9"),
        (["torchrun", "--rdzv-id=none", "t.py"], {"SLURM_JOB_ID": "1"}, "slurm:1"),
        (["torchrun", "--rdzv-id"], {}, None),
        (["bash", "x"], {"RLAUDIT_JOB_ID": "mine", "SLURM_JOB_ID": "1"}, "rlaudit:mine"),
    ],
)
def test_the_most_specific_id_names_the_job(command: list[str], environment: dict[str, str], identity: str | None) -> None:
    assert job_identity(command, environment) == identity
