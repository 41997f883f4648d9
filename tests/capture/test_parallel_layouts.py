"""Two nodes without a shared disk, tensor x pipeline x sequence parallel ranks, one kill and a resume, a tenth sampled: one whole run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rlaudit import Run
from rlaudit.analyzers.parts import check_parts
from rlaudit.merging import merge
from rlaudit.tokens import prompt_fraction
from tests.capture import producer as layout

SAMPLE = 0.1
LAUNCH = (
    "import sys; from pathlib import Path; from rlaudit.capture.launcher import *\n"
    f"launch(CaptureOptions(out=Path(sys.argv[1]), sample={SAMPLE}, resume=True), sys.argv[2:])"
)


def start(folder: Path, node: int, first: int, last: int, kill: int | None = None) -> subprocess.Popen[bytes]:
    """The launcher of one node, whose command starts the node's four ranks."""
    script = Path(__file__).with_name("producer.py")
    ranks = [
        f"RANK={rank} WORLD_SIZE=8 {sys.executable} {script} {rank} {first} {last} {kill if kill is not None and rank % 4 == 2 else ''} &"
        for rank in range(4 * node, 4 * node + 4)
    ]
    environment = {**os.environ, "RLAUDIT_JOB_ID": "simulated"}
    return subprocess.Popen(
        [sys.executable, "-c", LAUNCH, str(folder / f"node{node}"), "bash", "-c", "\n".join([*ranks, "wait"])], env=environment
    )


@pytest.fixture(scope="module")
def merged(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("nodes")
    # Attempt 0 trains steps 0 to 2; a rank of node 1 dies in step 2. Attempt 1 begins again at step 2, as from a checkpoint.
    for first, last, kill in ((0, 2, 2), (2, 3, None)):
        for process in [start(folder, node, first, last, kill if node == 1 else None) for node in (0, 1)]:
            assert process.wait(timeout=120) == 0
    return merge([folder / "node0", folder / "node1"], folder / "merged")


def sampled(step: int) -> set[tuple[int, int]]:
    """(replica, number) of the sequences of a step whose prompt is in the sample."""
    return {
        (replica, number)
        for replica in (0, 1)
        for number in range(layout.SEQUENCES)
        if prompt_fraction("rlaudit:simulated", np.array(layout.sequence(replica, step, number)[1], np.int32)) < SAMPLE
    }


def test_the_sample_is_the_same_prompts_on_both_nodes_and_in_both_attempts(merged: Run) -> None:
    for attempt, step in ((0, 0), (0, 1), (1, 2), (1, 3)):
        got = merged.connect().execute("select sequence_id from sequences where attempt = $1 and step = $2", [attempt, step]).fetchall()
        assert sorted(name for (name,) in got) == sorted(f"d{replica}-s{step}-{number}" for replica, number in sampled(step))
    assert sum(len(sampled(step)) for step in range(4)) > 0


def test_no_cell_of_the_trainers_routing_is_missing_and_none_is_there_twice(merged: Run) -> None:
    for attempt, step in ((0, 0), (0, 1), (1, 2), (1, 3)):
        cells = (
            merged.connect()
            .execute(
                "select sequence_id, absolute_position, layer, experts from routing_tokens "
                "where source = 'trainer' and attempt = $1 and step = $2 order by all",
                [attempt, step],
            )
            .fetchall()
        )
        expected = []
        for replica, number in sampled(step):
            name, _, _, routing = layout.sequence(replica, step, number)
            expected += [(name, p, layer, routing[p, layer].tolist()) for p in range(routing.shape[0]) for layer in range(layout.LAYERS)]
        assert cells == sorted(expected)


def test_every_sampled_rollout_token_is_compared_once(merged: Run) -> None:
    (tokens, sequences, delta) = merged.connect().execute(
        "select count(*), count(distinct (attempt, sequence_id)), max(abs(delta + 0.25)) from tokens "
        "where comparable and not (attempt = 0 and step = 2)"
    ).fetchone() or (0, 0, 1)
    expected = [layout.sequence(replica, step, number)[2] for step in range(4) for replica, number in sampled(step)]
    assert (tokens, sequences, delta) == (sum(map(len, expected)), len(expected), 0.0)


def test_parts_of_the_killed_rank_are_reported_with_its_rank(merged: Run) -> None:
    found = check_parts(merged)
    killed = {(replica, number) for replica, number in sampled(2) if replica == 1}
    assert found.steps == ({2} if killed else set())
    assert found.incomplete == len(killed)
    assert set(found.by_rank) == ({6} if killed else set())


def test_the_report_withholds_what_is_not_whole_and_agrees_on_the_rest(merged: Run) -> None:
    from rlaudit.analyzers.audit import build_report

    report = build_report(merged)
    codes = {finding.code for finding in report.findings}
    assert "PARTS_MISSING" in codes or not any(replica == 1 for replica, _ in sampled(2))
    assert all(layer.disagreement == 0.0 for layer in report.routing_by_layer)
    assert [layer.layer for layer in report.routing_by_layer] == list(range(layout.LAYERS))


def test_files_stay_few_and_small(merged: Run) -> None:
    files = list(Path(merged.path).rglob("*.parquet"))
    processes = 2 * 8 * 2  # ranks and shells' Python processes of two attempts at most, five tables each
    assert len(files) <= processes * 5
    routed = sum(layout.sequence(r, s, n)[3].size for s in range(4) for r, n in sampled(s))
    assert sum(path.stat().st_size for path in files) < 5 * routed + 20_000 * len(files)
