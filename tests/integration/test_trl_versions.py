"""Older TRL versions, each in an environment of its own: an unchanged script under ``rlaudit capture`` joins completely."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from rlaudit.run import Run

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[2]
SOURCES = ("audit", "capture", "analyzers", "replay", "report", "cli", "pyproject.toml", "setup.py", "README.md", "LICENSE")


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


def installed(version: Version, folder: Path) -> Path:
    """bin folder of ``.venvs/trl-<version>``, made where it isn't there, with rlaudit as it is now."""
    environment = ROOT / ".venvs" / f"trl-{version.trl}"
    python, done = environment / "bin" / "python", environment / "installed"
    wanted = "\n".join([version.trl, *version.beside])
    if not done.exists() or done.read_text() != wanted:
        shutil.rmtree(environment, ignore_errors=True)
        run([sys.executable, "-m", "venv", environment])
        pip(python, "torch==2.13.0")  # first and alone: what comes after would bring other builds
        pip(python, f"trl=={version.trl}", *version.beside)
        done.write_text(wanted)
    copy = folder / "project"
    copy.mkdir()
    for name in SOURCES:  # pip builds where the sources are; a copy keeps the working tree clean
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(ROOT / name, copy / name)
    pip(python, str(copy))
    pip(python, "--no-deps", "--force-reinstall", str(copy))
    return python.parent


def pip(python: Path, *requirements: str) -> None:
    run([python, "-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check", *requirements])


def run(command: list[str | Path], cwd: Path = ROOT, **variables: str) -> str:
    """Run a command and return its output; fails with its end where the command fails."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RLAUDIT", "PYTHON"))}
    done = subprocess.run(command, env={**kept, **variables}, cwd=cwd, capture_output=True, text=True, timeout=1500, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


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
    commands = installed(version, folder)
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
