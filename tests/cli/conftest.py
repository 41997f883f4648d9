"""Runs commands through the real entry point, in this process, on a small synthetic run."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from rlaudit.cli.main import main
from tests.synthetic import write_run


class Outcome(NamedTuple):
    """What a command left: exit status, standard output, standard error."""

    status: int
    out: str
    err: str


Cli = Callable[..., Outcome]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """``cli("query", run, "select 1", stdin="...")`` as the shell would run it."""

    def run(*arguments: object, stdin: str | None = None) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["rlaudit", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin or ""))
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        printed = capsys.readouterr()
        return Outcome(int(end.value.code or 0), printed.out, printed.err)

    return run


def event(time: int, kind: str, name: str, **detail: object) -> dict[str, object]:
    """A row of ``events``."""
    return {"time": time, "kind": kind, "name": name, "process": "host-1-0", "detail": json.dumps(detail)}


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two steps, three sequences, one missing and one infinite log-probability."""
    folder = tmp_path_factory.mktemp("runs") / "small"
    write_run(
        folder,
        manifest={"started": 1_700_000_000.0, "ended": 1_700_000_192.0, "exit_status": 0, "packages": {"torch": "2.13.0"}},
        sequences=[
            {"step": 0, "sequence_id": "a", "response_tokens": [5, 6, 7], "reward": 1.0},
            {"step": 0, "sequence_id": "b", "response_tokens": [8], "reward": 0.0},
            {"step": 2, "sequence_id": "c", "response_tokens": [], "reward": None},
        ],
        scores=[
            {"step": 0, "sequence_id": "a", "source": "rollout", "logprobs": [-1.0, None, -0.5]},
            {"step": 0, "sequence_id": "a", "source": "trainer", "logprobs": [-1.25, -2.0, float("-inf")]},
            {"step": 0, "sequence_id": "b", "source": "rollout", "logprobs": [-3.0]},
            {"step": 0, "sequence_id": "b", "source": "trainer", "logprobs": [-3.5]},
        ],
        events=[
            event(1, "process_started", "process", program="train.py", executable="python"),
            event(2, "hook_attached", "trl", distribution="trl", version="1.16.0"),
            event(
                3,
                "heartbeat",
                "process",
                rows={"sequences": 3, "scores": 4},
                fired={"trl: GRPOTrainer._generate": 2},
                hook_seconds=0.5,
            ),
        ],
    )
    return folder
