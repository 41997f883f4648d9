"""Older TRL versions, each in an environment of its own: an unchanged script under ``rlaudit capture`` joins completely."""

from __future__ import annotations

import os
from typing import NamedTuple

import pytest

from rlaudit.run import Run
from tests.integration.environments import ROOT, installed, run

pytestmark = pytest.mark.integration


class Version(NamedTuple):
    """A TRL version, what it needs beside it, and whether its transformers shows which experts were chosen.

    requests: TRL 0.24 to 0.29 import it and do not depend on it.
    """

    trl: str
    beside: tuple[str, ...]
    routing: bool


VERSIONS = (
    Version("0.29.1", ("transformers==5.24.0", "requests"), True),
    Version("0.24.0", ("transformers==4.57.6", "datasets==4.4.2", "accelerate==1.11.0", "requests"), False),
)


class Training(NamedTuple):
    """A captured and a plain training with one version: the run, and each one's digest of the final weights."""

    version: Version
    run: Run
    captured: str
    plain: str


@pytest.fixture(scope="module", params=VERSIONS, ids=lambda version: version.trl)
def training(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Training:
    version: Version = request.param
    folder = tmp_path_factory.mktemp(f"trl-{version.trl}")
    # torch first and alone: what comes after would bring other builds
    commands = installed(f"trl-{version.trl}", ["torch==2.13.0"], [f"trl=={version.trl}", *version.beside])
    script = str(ROOT / "tests" / "integration" / "train_tiny_grpo.py")
    environment = {
        "OMP_NUM_THREADS": "1",
        "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "HF_HUB_OFFLINE": "1",
    }
    training = [commands / "python", script]
    captured = run([commands / "rlaudit", "capture", "--out", folder / "run", "--", *training, folder / "a"], folder, **environment)
    plain = run([*training, folder / "b"], folder, **environment)
    return Training(version, Run.open(folder / "run"), weights(captured), weights(plain))


def weights(output: str) -> str:
    return next(line.split()[1] for line in output.splitlines() if line.startswith("weights "))


def test_final_weights_are_bit_identical_with_and_without_capture(training: Training) -> None:
    assert training.captured == training.plain


def test_every_training_row_joins_a_rollout_and_every_rollout_is_used(training: Training) -> None:
    rows = training.run.connect().execute(
        "select count(distinct s.sequence_id), count(distinct u.sequence_id), count(distinct r.sequence_id) from sequences s "
        "left join scores u on u.sequence_id = s.sequence_id and u.source = 'update' "
        "left join scores r on r.sequence_id = s.sequence_id and r.source = 'rollout'"
    )
    assert rows.fetchone() == (32, 32, 32)
    orphans = training.run.connect().execute("select count(*) from scores where sequence_id not in (select sequence_id from sequences)")
    assert orphans.fetchone() == (0,)


def test_trainer_logprobs_before_the_update_agree_with_the_samplers_in_float32(training: Training) -> None:
    largest, tokens = (
        training.run.connect().execute("select max(abs(delta)), count(*) from tokens where trainer_source = 'trainer'").fetchone() or ()
    )
    assert tokens > 200
    assert largest < 2e-4


def test_uses_after_an_update_carry_their_lag(training: Training) -> None:
    lags = training.run.connect().execute("select \"update\", count(*) from scores where source = 'update' group by 1 order by 1")
    assert lags.fetchall() == [(0, 16), (1, 16)]


def test_requests_give_the_sequences_tokens(training: Training) -> None:
    different = training.run.connect().execute(
        "select count(*), count(*) filter (where r.output_tokens <> s.response_tokens or r.input_tokens <> s.prompt_tokens) "
        "from links l join requests r using (request_id) join sequences s on s.sequence_id = l.sequence_id"
    )
    assert different.fetchone() == (32, 0)


def test_routing_is_recorded_where_transformers_shows_it_and_said_to_be_missing_elsewhere(training: Training) -> None:
    connection = training.run.connect()
    sources = {row[0] for row in connection.execute("select distinct source from routing").fetchall()}
    said = {row[0] for row in connection.execute("select name from events where kind = 'not_recorded'").fetchall()}
    if training.version.routing:
        assert (sources, said) == ({"rollout", "trainer", "update"}, set())
    else:
        assert (sources, said) == (set(), {"rollout routing", "trainer routing"})
