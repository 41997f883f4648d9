"""Capture reaches Ray's actors, also in a cluster that was started before it, and leaves every runtime environment the user's own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from rlaudit import Run
from rlaudit.analyzers.capture_summary import summarise_capture
from tests.launch.place import Place, assert_reached

pytestmark = pytest.mark.integration
VARIABLES = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled", "RAY_DEDUP_LOGS": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}

ACTORS = """
import json, sys
import ray

def mine():
    return {name: os.environ.get(name) for name in ("PYTHONPATH", "MINE", "JOB")}

@ray.remote(num_cpus=0)
class Inner:
    def record(self):
        emit("inner")
        rlaudit.step(0)
        return mine()

@ray.remote(num_cpus=0)
class Outer:
    def record(self):
        emit("outer")
        rlaudit.step(0)
        nested = Inner.options(runtime_env={"env_vars": {"PYTHONPATH": "/nested", "MINE": "inner"}}).remote()
        return mine(), ray.get(nested.record.remote())

ray.init(**json.loads(sys.argv[1]), log_to_driver=False)
emit("driver")
outer, inner = ray.get(Outer.options(runtime_env={"env_vars": {"MINE": "outer"}}).remote().record.remote())
print("saw", json.dumps({"outer": outer, "inner": inner}))
"""


def saw(output: str) -> dict[str, dict[str, str | None]]:
    """The variables of the user's own that the actors saw."""
    (line,) = [line for line in output.splitlines() if line.startswith("saw ")]
    return json.loads(line.removeprefix("saw "))  # type: ignore[no-any-return]


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A folder with a short name: Ray keeps sockets in it, whose paths may not be longer than 107 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="ray-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


class Cluster(NamedTuple):
    """Addresses of a running cluster: of its head, of its dashboard, of its server for clients."""

    address: str
    dashboard: str
    client: str


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.fixture(scope="module")
def cluster(torch_commands: Path) -> Iterator[Cluster]:
    """A cluster that was started before any capture and knows nothing of it. Its ports and files are its own."""
    temporary = Path(tempfile.mkdtemp(prefix="ray-"))
    ports = {
        name: free_port()
        for name in ("port", "dashboard-port", "ray-client-server-port", "dashboard-agent-listen-port", "metrics-export-port")
    }
    options = [f"--{name}={port}" for name, port in ports.items()]
    command = ["ray", "start", "--head", "--block", "--node-ip-address=127.0.0.1", "--num-cpus=2", "--include-dashboard=true"]
    log = (temporary / "log").open("w")
    place = Place(torch_commands, temporary)
    process = place.start([*command, f"--temp-dir={temporary}", *options], VARIABLES, stdout=log, stderr=log, start_new_session=True)
    found = Cluster(
        f"127.0.0.1:{ports['port']}", f"http://127.0.0.1:{ports['dashboard-port']}", f"ray://127.0.0.1:{ports['ray-client-server-port']}"
    )
    try:
        wait_for_jobs_api(place, process, found)
        yield found
    finally:
        end_session(process.pid)  # not "ray stop", which stops every cluster on the machine
        process.wait(timeout=30)
        log.close()
        shutil.rmtree(temporary, ignore_errors=True)


def wait_for_jobs_api(place: Place, process: subprocess.Popen[str], cluster: Cluster) -> None:
    deadline = time.monotonic() + 120
    while True:
        assert process.poll() is None and time.monotonic() < deadline, (place.folder / "log").read_text()[-3000:]
        if place.run(["ray", "job", "list", "--address", cluster.dashboard], VARIABLES).returncode == 0:
            return
        time.sleep(1.0)


def end_session(leader: int) -> None:
    """Kill what is left of the processes that ``leader``, which led a session of its own, has started."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if os.getsid(int(entry.name)) == leader:
                    os.kill(int(entry.name), signal.SIGKILL)
            except ProcessLookupError:
                continue


NAMES = {"driver", "outer", "inner"}


def test_actors_and_nested_actors_of_a_local_ray(torch_place: Place, temporary: Path) -> None:
    script = torch_place.script("train.py", ACTORS)
    settings = json.dumps({"num_cpus": 2, "include_dashboard": False, "_temp_dir": str(temporary)})
    done = torch_place.capture("python", script, settings, variables=VARIABLES)
    assert_reached(torch_place, done, NAMES, 3)
    assert saw(done.stdout)["inner"] == {"PYTHONPATH": "/nested", "MINE": "inner", "JOB": None}
    assert list((torch_place.out / "spool").glob("*_*")) == [], "actors that were ending were waited for, and everything is Parquet"


def test_a_cluster_that_was_started_before_the_capture(torch_place: Place, cluster: Cluster) -> None:
    script = torch_place.script("train.py", ACTORS)
    settings = json.dumps({"address": cluster.address, "runtime_env": {"env_vars": {"JOB": "mine", "PYTHONPATH": "/of/the/job"}}})
    done = torch_place.capture("python", script, settings, variables=VARIABLES)
    assert_reached(torch_place, done, NAMES, 3)
    seen = saw(done.stdout)
    assert seen["inner"] == {"PYTHONPATH": "/nested", "MINE": "inner", "JOB": "mine"}
    assert seen["outer"]["PYTHONPATH"] is not None
    assert seen["outer"]["PYTHONPATH"].split(":")[-1] == "/of/the/job"
    assert (seen["outer"]["MINE"], seen["outer"]["JOB"]) == ("outer", "mine")


def test_a_client_of_such_a_cluster(torch_place: Place, cluster: Cluster) -> None:
    script = torch_place.script("train.py", ACTORS)
    done = torch_place.capture("python", script, json.dumps({"address": cluster.client}), variables=VARIABLES)
    assert_reached(torch_place, done, NAMES, 3)


def test_a_submitted_job_with_a_runtime_environment_of_its_own(torch_place: Place, cluster: Cluster) -> None:
    script = torch_place.script("train.py", ACTORS)
    runtime = json.dumps({"env_vars": {"JOB": "submitted", "PYTHONPATH": "/of/the/job"}})
    submit = ["ray", "job", "submit", "--address", cluster.dashboard, "--runtime-env-json", runtime, "--", "python", str(script), "{}"]
    done = torch_place.capture(*submit, variables=VARIABLES)
    assert_reached(torch_place, done, NAMES, 3)
    seen = saw(done.stdout)
    assert seen["inner"] == {"PYTHONPATH": "/nested", "MINE": "inner", "JOB": "submitted"}
    assert (seen["outer"]["MINE"], seen["outer"]["JOB"]) == ("outer", "submitted")


def test_a_submitted_job_that_fails_fails_the_command(torch_place: Place, cluster: Cluster) -> None:
    script = torch_place.script("train.py", "import sys\nemit('driver')\nrlaudit.step(0)\nsys.exit(3)")
    submit = ["ray", "job", "submit", "--address", cluster.dashboard, "--", "python", str(script)]
    plain = torch_place.run(submit, VARIABLES)
    captured = torch_place.capture(*submit, variables=VARIABLES)
    assert captured.returncode == plain.returncode != 0
    rows = Run.open(torch_place.out).read("sequences", ["sequence_id"])["sequence_id"].to_pylist()
    assert rows == ["driver"]


def test_an_actor_that_is_killed_leaves_what_it_had_recorded(torch_place: Place, temporary: Path) -> None:
    script = torch_place.script(
        "train.py",
        "import json, sys, ray\n"
        "@ray.remote(num_cpus=0)\n"
        "class Actor:\n"
        "    def record(self):\n"
        "        emit('actor')\n"
        "        rlaudit.step(0)\n"
        "ray.init(**json.loads(sys.argv[1]), log_to_driver=False)\n"
        "actor = Actor.remote()\n"
        "ray.get(actor.record.remote())\n"
        "ray.kill(actor)\n",
    )
    settings = json.dumps({"num_cpus": 1, "include_dashboard": False, "_temp_dir": str(temporary)})
    assert_reached(torch_place, torch_place.capture("python", script, settings, variables=VARIABLES), {"actor"}, 1)


def test_without_capture_a_captured_environments_ray_is_left_alone(torch_place: Place, temporary: Path) -> None:
    script = torch_place.script("train.py", ACTORS)
    settings = json.dumps({"num_cpus": 2, "include_dashboard": False, "_temp_dir": str(temporary)})
    done = torch_place.capture("python", script, settings, variables={**VARIABLES, "RLAUDIT_DISABLE": "1"})
    assert done.returncode == 0, done.stderr[-3000:]
    assert set(torch_place.pids()) == NAMES
    summary = summarise_capture(Run.open(torch_place.out))
    assert summary.processes == ()
    assert "RLAUDIT_DISABLE" in (summary.likely_reason or "")
