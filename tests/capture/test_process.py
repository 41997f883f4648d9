"""What a process says of itself: who it is, which rank, what runs in it, and nothing that could be a secret."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rlaudit.capture import process
from rlaudit.capture.note import leave_note
from rlaudit.capture.variables import run_and_attempt
from rlaudit.spool import Constant, read_spool


@pytest.fixture(autouse=True)
def no_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)


def program(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Any:
    monkeypatch.setattr(sys, "orig_argv", list(arguments))
    return process.started_facts()["program"]


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (("python", "train.py", "--api-key", "s3cret"), "train.py"),
        (("python", "-u", "-W", "ignore", "-X", "dev", "train.py"), "train.py"),
        (("python", "-Wignore", "-Xdev", "train.py"), "train.py"),
        (("python", "-m", "torch.distributed.run", "x"), "-m torch.distributed.run"),
        (("python", "-Im", "train"), "-m train"),
        (("python", "-c", "key = 's3cret'"), "-c"),
        (("python", "-uc", "key = 's3cret'"), "-c"),
        (("python", "-ckey = 's3cret'"), "-c"),
        (("python", "-c", "from multiprocessing.spawn import spawn_main; spawn_main(pipe_handle=5)"), "-c multiprocessing.spawn"),
        (("python", "-"), "-"),
        (("python",), "python"),
    ],
)
def test_the_program_is_named_without_arguments_or_code(monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], shown: str) -> None:
    assert program(monkeypatch, *arguments) == shown


def test_ranks_are_those_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4", "GROUP_WORLD_SIZE": "2", "MASTER_ADDR": "n0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_PORT", "29500")
    assert process.rank_facts() == {"rank": 5, "world_size": 8, "local_world_size": 4, "group_world_size": 2, "job": "n0:29500"}
    assert process.process_facts(0)["rank"] == process.current_rank() == 5


def test_ranks_that_only_torch_distributed_knows_are_asked_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Distributed:
        ready = False
        is_available = staticmethod(lambda: True)
        get_rank = staticmethod(lambda: 3)
        get_world_size = staticmethod(lambda: 4)

        @classmethod
        def is_initialized(cls) -> bool:
            return cls.ready

    monkeypatch.setitem(sys.modules, "torch.distributed", Distributed)  # type: ignore[arg-type]
    assert (process.rank_facts(), process.current_rank()) == ({}, None)
    Distributed.ready = True
    assert process.current_rank() == 3
    assert {"rank": 3, "world_size": 4}.items() <= process.rank_facts().items()


def test_a_process_that_ended_is_not_alive_even_before_its_parent_notices() -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    assert process.is_alive(os.getpid())
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # a zombie now
    assert not process.is_alive(child.pid)
    child.wait()
    assert not process.is_alive(child.pid)


def test_the_note_is_a_spool_that_any_reader_understands(tmp_path: Path) -> None:
    facts = {"host": 'a"b\\ü😀', "rank": None, "process": "h-1-0", "attempt": 2}
    detail = {"program": "tràin.py", "pid": 7, "ranks": {"rank": 1, "world_size": 2}}
    leave_note(str(tmp_path / "spool"), facts, detail)
    (path,) = (tmp_path / "spool").iterdir()
    contents = read_spool(path)
    (frame,) = contents.frames
    assert (contents.defaults, frame.table, frame.rows, frame.columns["kind"]) == (facts, "events", 1, Constant("process_started"))
    written = frame.columns["detail"]
    assert isinstance(written, Constant)
    assert json.loads(written.value) == detail


def test_run_and_attempt_are_found_wherever_they_stand_in_the_configuration() -> None:
    path = '/data/ünï "run"\\x'
    for data in ({"run": path, "attempt": 3, "tables": []}, {"tables": [], "attempt": 3, "run": path}):
        for separators in ((",", ":"), (", ", ": ")):
            assert run_and_attempt(json.dumps(data, separators=separators)) == (path, 3)
    assert run_and_attempt('{"run": "x"}') == ("x", 0)


def test_a_line_for_people_is_dropped_where_nobody_can_read_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed:
        def write(self, text: str) -> None:
            raise BrokenPipeError

    for stream in (Closed(), None):
        monkeypatch.setattr(sys, "stderr", stream)
        process.say("training goes on")
