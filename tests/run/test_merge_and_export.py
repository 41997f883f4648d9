"""Runs of several nodes become one; a run that leaves the house says nothing about who and where."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from rlaudit import Run
from rlaudit.errors import BadOption, RunExists
from rlaudit.merging import merge
from rlaudit.redaction import export_redacted
from rlaudit.spool import Constant, Scalars, SpoolFile, encode_frame
from tests.synthetic import write_run


def node(path: Path, number: int, **manifest: object) -> Run:
    return write_run(
        path,
        process=f"node{number}-1-0",
        manifest={
            "job": "slurm:1",
            "hosts": [f"node{number}"],
            "started": 10.0 + number,
            "ended": 20.0 + number,
            "exit_status": 0,
            **manifest,
        },
        sequences=[{"step": 0, "sequence_id": f"s{number}", "response_tokens": [1, 2], "host": f"node{number}"}],
    )


def test_rows_of_all_nodes_are_in_the_merged_run_and_the_nodes_runs_stay(tmp_path: Path) -> None:
    runs = [node(tmp_path / f"n{i}", i) for i in range(3)]
    merged = merge([Path(run.path) for run in runs], tmp_path / "all")
    assert sorted(merged.read("sequences")["sequence_id"].to_pylist()) == ["s0", "s1", "s2"]
    assert merged.manifest.hosts == ["node0", "node1", "node2"]
    assert (merged.manifest.started, merged.manifest.ended) == (10.0, 22.0)
    assert [run.read("sequences").num_rows for run in runs] == [1, 1, 1]


def test_rows_still_in_a_spool_come_along(tmp_path: Path) -> None:
    runs = [node(tmp_path / f"n{i}", i) for i in range(2)]
    spool = SpoolFile(tmp_path / "n0" / "spool", "node0-7-0", 0, {"host": "node0", "rank": None, "process": "node0-7-0", "attempt": 0})
    spool.append(encode_frame("sequences", 1, {"step": Constant(1), "sequence_id": Scalars(["late"])}))
    merged = merge([Path(run.path) for run in runs], tmp_path / "all")
    assert sorted(merged.read("sequences")["sequence_id"].to_pylist()) == ["late", "s0", "s1"]


def test_the_worst_exit_status_and_differing_packages_are_kept(tmp_path: Path) -> None:
    a = node(tmp_path / "a", 0, packages={"torch": "2.12", "trl": "1.0"})
    b = node(tmp_path / "b", 1, packages={"torch": "2.13"}, exit_status=-9)
    manifest = merge([Path(a.path), Path(b.path)], tmp_path / "all").manifest
    assert manifest.exit_status == -9
    assert manifest.settings["packages_differ_between_nodes"] == {"torch": ["2.12", "2.13"]}


def test_runs_of_different_jobs_are_not_mixed(tmp_path: Path) -> None:
    node(tmp_path / "a", 0)
    node(tmp_path / "b", 1, job="slurm:2")
    with pytest.raises(BadOption, match="different jobs"):
        merge([tmp_path / "a", tmp_path / "b"], tmp_path / "all")


def test_a_copy_of_the_same_run_is_not_counted_twice(tmp_path: Path) -> None:
    node(tmp_path / "a", 0)
    node(tmp_path / "b", 0)
    with pytest.raises(BadOption, match="node0-1-0 is in"):
        merge([tmp_path / "a", tmp_path / "b"], tmp_path / "all")


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    node(tmp_path / "a", 0)
    node(tmp_path / "b", 1)
    with pytest.raises(RunExists):
        merge([tmp_path / "a", tmp_path / "b"], tmp_path / "a")


SECRETS = ("alice", "node0", "/home/", "topsecret", "row-17", "4711", "train.py")


@pytest.fixture
def private(tmp_path: Path) -> Run:
    key = {"step": 0, "sequence_id": "row-17"}
    tokens = {"prompt_tokens": [7, 8], "response_tokens": [8, 9, 8]}
    return write_run(
        tmp_path / "private",
        process="node0-1-0",
        manifest={
            "command": ["python", "/home/alice/train.py"], "working_directory": "/home/alice", "hosts": ["node0"], "job": "slurm:4711",
            "environment": {"NCCL_SOCKET_IFNAME": "topsecret0"}, "git": {"commit": "4711abc"}, "packages": {"torch": "2.13"},
        },
        sequences=[{**key, **tokens, "group_id": "alice", "host": "node0", "reward": 0.5}],
        scores=[{**key, "source": s, "logprobs": [-1.0, low, -3.0]} for s, low in (("rollout", -2.0), ("trainer", -2.5))],
        requests=[{"request_id": "alice-1", "input_tokens": [7, 8], "output_tokens": [8, 9, 8]}],
        links=[{**key, "request_id": "alice-1", "start": 0, "end": 3}],
        weights=[{"fact": "saved", "checkpoint": "/home/alice/ckpt"}],
        events=[
            {"kind": "process_started", "name": "process", "detail": json.dumps({"executable": "/home/alice/bin/python"})},
            {"kind": "heartbeat", "name": "process", "detail": json.dumps({"rows": {"scores": 2}, "failures": {"x": [1, "/home/alice"]}})},
            {"kind": "capture_stopped", "name": "/home/alice is full", "message": "/home/alice is full"},
        ],
    )  # fmt: skip


def test_nothing_that_says_who_or_where_is_in_the_copy(private: Run, tmp_path: Path) -> None:
    exported = export_redacted(private, tmp_path / "copy")
    shown = (tmp_path / "copy" / "manifest.json").read_text() + "".join(
        json.dumps(exported.read(table).to_pylist(), default=str)
        for table in ("sequences", "scores", "requests", "links", "weights", "events")
    )
    names = "".join(path.name for path in (tmp_path / "copy").rglob("*"))
    assert [secret for secret in SECRETS if secret in shown + names] == []
    raw = b"".join(path.read_bytes() for path in (tmp_path / "copy").rglob("*") if path.is_file())
    assert [secret for secret in SECRETS if len(secret) > 4 and secret.encode() in raw] == []


def test_the_copy_still_answers_the_same_questions(private: Run, tmp_path: Path) -> None:
    exported = export_redacted(private, tmp_path / "copy")
    question = "select count(*), sum(abs(delta)), avg(reward) from tokens where comparable"
    assert exported.connect().execute(question).fetchone() == private.connect().execute(question).fetchone()
    assert exported.connect().execute("select tokens_equal, input_equal from turns").fetchall() == [(True, True)]
    tokens = exported.read("sequences")["response_tokens"].to_pylist()[0]
    assert tokens[0] == tokens[2] != tokens[1]
    assert not {7, 8, 9} & set(tokens)
    assert exported.manifest.packages == {"torch": "2.13"}


def test_two_exports_cannot_be_joined_to_each_other(private: Run, tmp_path: Path) -> None:
    a, b = export_redacted(private, tmp_path / "a"), export_redacted(private, tmp_path / "b")
    assert a.read("sequences")["sequence_id"] != b.read("sequences")["sequence_id"]
    assert not np.array_equal(a.read("sequences")["response_tokens"].to_pylist()[0], b.read("sequences")["response_tokens"].to_pylist()[0])
