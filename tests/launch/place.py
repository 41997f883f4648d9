"""Where a launch test works: an environment with the wheel, a folder of its own, and processes that leave their ids when they record."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlaudit import Run
from rlaudit.analyzers.capture_summary import summarise_capture
from rlaudit.analyzers.results import CaptureSummary
from tests.integration.environments import plain_environment

EMIT = """
import os, rlaudit
def emit(name):
    rlaudit.record_rollout(step=0, sequence_ids=[name], prompt_tokens=[[1]], response_tokens=[[2, 3]], logprobs=[[-1.0, -2.0]])
    with open(os.path.join({folder!r}, name), "w") as file:
        file.write(str(os.getpid()))
"""
"""Code before a test's own: ``emit(name)`` records one sequence of that name and leaves its process id."""


@dataclass(frozen=True)
class Place:
    """commands: bin folder of an environment other than the developer's; folder: the test's own, and its working directory."""

    commands: Path
    folder: Path

    @property
    def out(self) -> Path:
        """The run."""
        return self.folder / "run"

    @property
    def emitted(self) -> Path:
        """Folder where processes that recorded leave their ids."""
        (self.folder / "emitted").mkdir(exist_ok=True)
        return self.folder / "emitted"

    def code(self, text: str) -> str:
        """Python code that may call ``emit(name)``."""
        return EMIT.format(folder=str(self.emitted)) + text

    def script(self, name: str, text: str) -> Path:
        """A file with such code; returns its path."""
        path = self.folder / name
        path.write_text(self.code(text) if name.endswith(".py") else text, encoding="utf-8")
        return path

    def environment(self, **variables: str) -> dict[str, str]:
        """A user's shell with the environment activated."""
        plain = plain_environment(OMP_NUM_THREADS="1")
        return {**plain, "PATH": f"{self.commands}:{plain['PATH']}", "VIRTUAL_ENV": str(self.commands.parent), **variables}

    def capturing(self, *command: str | Path, options: Sequence[str] = ()) -> list[str]:
        """The command line that captures ``command``."""
        return [str(self.commands / "rlaudit"), "capture", "--out", str(self.out), *options, "--", *map(str, command)]

    def start(self, command: Sequence[str | Path], variables: dict[str, str] | None = None, **popen: Any) -> subprocess.Popen[str]:
        """Start a command as a user would; output is collected as text unless said otherwise."""
        settings = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **popen}
        return subprocess.Popen(command, cwd=self.folder, env=self.environment(**(variables or {})), **settings)

    def run(
        self, command: Sequence[str | Path], variables: dict[str, str] | None = None, given: str | None = None, **popen: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        if given is not None:
            popen["stdin"] = subprocess.PIPE
        process = self.start(command, variables, **popen)
        stdout, stderr = process.communicate(given, timeout=300)
        return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)

    def capture(
        self, *command: str | Path, options: Sequence[str] = (), variables: dict[str, str] | None = None, **popen: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run ``command`` under ``rlaudit capture`` to its end."""
        return self.run(self.capturing(*command, options=options), variables, **popen)

    def pids(self) -> dict[str, int]:
        """Process id by name that each ``emit`` left."""
        return {path.name: int(path.read_text()) for path in self.emitted.iterdir()}


def assert_reached(place: Place, done: subprocess.CompletedProcess[str], names: set[str], processes: int) -> CaptureSummary:
    """All of ``names`` were recorded, by ``processes`` processes; rows, coverage table and the processes' own word agree."""
    assert done.returncode == 0, done.stderr[-3000:]
    said = place.pids()
    assert set(said) == names
    assert len(set(said.values())) == processes
    run = Run.open(place.out)
    rows = run.read("sequences", ["sequence_id", "process"]).to_pylist()
    assert {row["sequence_id"]: pid_of(row["process"]) for row in rows} == said
    assert len(rows) == len(names)
    summary = summarise_capture(run)
    emitting = [process for process in summary.processes if process.emitting]
    assert sorted(pid_of(process.process) for process in emitting) == sorted(set(said.values()))
    assert sum(process.rows["sequences"] for process in emitting) == summary.rows["sequences"] == len(names)
    assert f" {processes} emitting" in done.stderr
    return summary


def pid_of(process: str) -> int:
    """Process id in a row's ``process`` (host, process id and start time)."""
    return int(process.rsplit("-", 2)[1])
