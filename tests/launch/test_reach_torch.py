"""Capture reaches the ranks that torchrun and accelerate start; expected and seen ranks agree; the training is bit for bit the same."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from rlaudit import Run
from rlaudit.analyzers.capture_summary import summarise_capture
from tests.launch.place import Place, pid_of

pytestmark = pytest.mark.integration
SCRIPT = Path(__file__).with_name("policy_gradient.py")
STEPS, SEQUENCES = 4, 8


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def torchrun(place: Place, ranks: int = 2) -> list[str]:
    return ["torchrun", "--nnodes", "1", "--nproc-per-node", str(ranks), "--master-addr", "127.0.0.1", "--master-port", str(free_port())]


def accelerate(place: Place) -> list[str]:
    settings = ["--num_processes", "2", "--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
    # --multi_gpu is accelerate's word for ranks started by torch's elastic launcher; the script itself uses gloo.
    return ["accelerate", "launch", "--multi_gpu", *settings, "--main_process_port", str(free_port())]


def train(place: Place, launcher: list[str], capture: bool) -> subprocess.CompletedProcess[str]:
    command = [*launcher, str(SCRIPT), str(STEPS), str(place.folder / ("captured" if capture else "plain"))]
    return place.run(place.capturing(*command) if capture else command)


def weights(done: subprocess.CompletedProcess[str]) -> list[str]:
    """What the ranks print of their final weights."""
    assert done.returncode == 0, done.stderr[-4000:]
    return sorted(line for line in done.stdout.splitlines() if "weights" in line)


def assert_ranks(place: Place, done: subprocess.CompletedProcess[str]) -> None:
    run = Run.open(place.out)
    rows = run.read("sequences", ["sequence_id", "rank", "process"]).to_pylist()
    assert sorted(row["sequence_id"] for row in rows) == sorted(
        f"{r}-{s}-{n}" for r in (0, 1) for s in range(STEPS) for n in range(SEQUENCES)
    )
    assert all(row["sequence_id"].startswith(f"{row['rank']}-") for row in rows)
    assert len({pid_of(row["process"]) for row in rows}) == 2
    summary = summarise_capture(run)
    emitting = [process for process in summary.processes if process.emitting]
    assert sorted(process.rank for process in emitting) == [0, 1]
    assert [process.rows["sequences"] for process in emitting] == [STEPS * SEQUENCES] * 2
    assert summary.joined_trainer == (2 * STEPS * SEQUENCES,) * 2
    (group,) = summary.ranks
    assert (group.attempt, group.expected, group.seen, group.emitting, group.missing) == (0, 2, (0, 1), (0, 1), ())
    assert (group.expected_hosts, len(group.hosts)) == (1, 1)
    assert "2 expected, 2 seen, 2 emitting on 1 of 1 hosts" in done.stderr


@pytest.mark.parametrize("launcher", [torchrun, accelerate])
def test_both_ranks_are_captured_and_train_as_without_capture(torch_place: Place, launcher) -> None:  # type: ignore[no-untyped-def]
    plain = train(torch_place, launcher(torch_place), capture=False)
    captured = train(torch_place, launcher(torch_place), capture=True)
    assert weights(captured) == weights(plain)
    assert len(weights(plain)) == 2
    assert_ranks(torch_place, captured)


def test_a_rank_that_capture_does_not_reach_is_missed_by_name(torch_place: Place) -> None:
    lost = torch_place.script("lost.sh", f'[ "$RANK" = 1 ] && export RLAUDIT_DISABLE=1\nexec python {SCRIPT} "$@"\n')
    done = torch_place.capture(*torchrun(torch_place), "--no-python", "bash", lost, str(STEPS), str(torch_place.folder / "progress"))
    assert done.returncode == 0, done.stderr[-4000:]
    (group,) = summarise_capture(Run.open(torch_place.out)).ranks
    assert (group.expected, group.seen, group.missing) == (2, (0,), (1,))
    assert "NEVER SEEN: rank 1" in done.stderr


def test_a_rank_that_is_killed_fails_the_job_as_without_capture_and_leaves_what_it_had_recorded(torch_place: Place) -> None:
    progress = torch_place.folder / "progress"
    dying = torch_place.script(
        "dying.sh",
        # $$ stays the shell's id in the subshell, and the training's after exec.
        f'[ "$RANK" = 1 ] && (until [ "$(grep -c "^3 " {progress})" = 2 ]; do sleep 0.05; done; kill -9 $$) &\nexec python {SCRIPT} "$@"\n',
    )
    ends = []
    for capture in (False, True):
        progress.unlink(missing_ok=True)
        progress.touch()
        command = [*torchrun(torch_place), "--no-python", "bash", str(dying), "100000", str(progress)]
        ends.append(torch_place.run(torch_place.capturing(*command) if capture else command).returncode)
    assert ends == [1, 1]
    run = Run.open(torch_place.out)
    assert set(range(3)) <= set(run.steps())
    first = run.read("sequences", ["step", "rank"], steps=(0, 2)).to_pylist()
    assert sorted((row["rank"], row["step"]) for row in first) == sorted((r, s) for r in (0, 1) for s in range(3) for _ in range(SEQUENCES))


def test_sigterm_to_what_the_user_started_ends_all_ranks_as_without_capture(torch_place: Place) -> None:
    ends = []
    for capture in (False, True):
        progress = torch_place.folder / f"progress{capture}"
        command = [*torchrun(torch_place), str(SCRIPT), "100000", str(progress)]
        process = torch_place.start(torch_place.capturing(*command) if capture else command)
        while not progress.exists() or progress.read_text().count("\n") < 4:
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        _, stderr = process.communicate(timeout=120)
        ends.append((process.returncode, "Received Signals.SIGTERM" in stderr or "SignalException" in stderr))
    assert ends[0] == ends[1]
    assert ends[0][0] != 0
    assert Run.open(torch_place.out).steps()


def test_ranks_of_torch_multiprocessing_that_only_torch_distributed_knows(torch_place: Place) -> None:
    script = torch_place.script(
        "train.py",
        "import torch\n"
        "def rank(number, port):\n"
        "    torch.distributed.init_process_group('gloo', init_method=f'tcp://127.0.0.1:{port}', rank=number, world_size=2)\n"
        "    emit(f'rank{number}')\n"
        "    torch.distributed.barrier()\n"
        "    torch.distributed.destroy_process_group()\n"
        "if __name__ == '__main__':\n"
        f"    torch.multiprocessing.spawn(rank, ({free_port()},), nprocs=2)\n",
    )
    done = torch_place.capture("python", script)
    assert done.returncode == 0, done.stderr[-4000:]
    rows = Run.open(torch_place.out).read("sequences", ["sequence_id", "rank"]).to_pylist()
    assert {(row["sequence_id"], row["rank"]) for row in rows} == {("rank0", 0), ("rank1", 1)}
