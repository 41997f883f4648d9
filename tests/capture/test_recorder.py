"""The recorder: bounded, counted, honest about what it lost, and harmless."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlaudit import Run, schema
from rlaudit.capture.config import CaptureConfig
from rlaudit.capture.conversion import convert_leftovers
from rlaudit.capture.hooks import HookLog
from rlaudit.capture.recorder import Recorder
from rlaudit.capture.sink import RecorderSink
from rlaudit.manifest import Manifest
from rlaudit.recording import Padded
from rlaudit.spool import SpoolFile

Make = Callable[..., RecorderSink]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def build(**options: Any) -> RecorderSink:
        folder = tmp_path / "run"
        folder.mkdir(exist_ok=True)
        Manifest(run_id="test-run").write(folder)
        tables = tuple(table.name for table in schema.TABLES)
        config = CaptureConfig(**{"run": str(folder), "run_id": "test-run", "tables": tables, **options})
        return RecorderSink(Recorder(config, HookLog()))

    return build


def rollout(sink: RecorderSink, step: int, rows: int = 3, width: int = 4, **more: Any) -> None:
    sink.record_rollout(
        step=step,
        sequence_ids=[f"s{step}-{i}" for i in range(rows)],
        prompt_tokens=[[step, i] for i in range(rows)],
        response_tokens=Padded(np.arange(rows * width).reshape(rows, width), lengths=[width] * rows),
        logprobs=Padded(-np.ones((rows, width)), lengths=[width] * rows),
        **more,
    )


def finished(sink: RecorderSink) -> Run:
    sink.recorder.close()
    convert_leftovers(Path(sink.recorder.config.run))
    return Run.open(sink.recorder.config.run)


def balance(run: Run) -> dict[str, Any]:
    beats = run.connect().execute("select detail from events where kind = 'heartbeat'").fetchall()
    return max((json.loads(detail) for (detail,) in beats), key=lambda beat: beat["beat"])  # type: ignore[no-any-return]


def test_a_rollout_becomes_a_sequence_and_a_score_of_the_same_tokens(make: Make) -> None:
    sink = make()
    rollout(sink, 5, rewards=np.array([1.0, 0.5, 0.0]), temperature=0.7, forward="decode", group_ids=["g", "g", "h"], policy_updates=5)
    run = finished(sink)
    sequences = run.read("sequences").to_pylist()
    assert [row["response_tokens"] for row in sequences] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert [(row["reward"], row["group_id"], row["temperature"], row["step"]) for row in sequences] == [
        (1.0, "g", 0.7, 5),
        (0.5, "g", 0.7, 5),
        (0.0, "h", 0.7, 5),
    ]
    scores = run.read("scores").to_pylist()
    assert {(row["source"], row["policy_updates"], row["forward"]) for row in scores} == {("rollout", 5, "decode")}
    assert balance(run)["rows"] == {"sequences": 3, "scores": 3}


def test_nan_and_infinite_log_probabilities_are_kept_as_they_are(make: Make) -> None:
    sink = make()
    sink.record_scores(step=0, sequence_ids=["a"], source="trainer", logprobs=[[float("nan"), float("-inf"), float("inf"), None, -1.0]])
    (got,) = finished(sink).read("scores")["logprobs"].to_pylist()
    assert np.isnan(got[0])
    assert got[1:] == [float("-inf"), float("inf"), None, -1.0]


def test_sequences_of_length_zero_are_rows_like_others(make: Make) -> None:
    sink = make()
    sink.record_rollout(step=0, sequence_ids=["a"], prompt_tokens=[[]], response_tokens=[[]], logprobs=[[]])
    run = finished(sink)
    assert run.read("sequences")["response_tokens"].to_pylist() == [[]]
    assert run.connect().execute("select count(*) from tokens").fetchone() == (0,)


def test_all_other_tables_take_their_rows(make: Make) -> None:
    sink = make()
    sink.record_routing(
        step=1,
        sequence_ids=["a"],
        source="rollout",
        experts=[np.array([[[0, 3]], [[2, 1]]])],
        num_experts=4,
        layer_ids=[7],
        weights=[np.ones((2, 1, 2))],
    )
    sink.record_request(request_ids=["r"], input_tokens=[[1]], output_tokens=[[2, 3]], turns=[0], finish_reasons=["stop"], started=12.5)
    sink.record_links(step=1, sequence_ids=["a"], request_ids=["r"], starts=[0], ends=[2], method="content", ambiguous=True)
    sink.record_weights(fact="sent", policy_updates=3)
    sink.record_metrics(step=1, framework="trl", values={"loss": 0.5, "note": "text"})  # type: ignore[dict-item]
    run = finished(sink)
    (routing,) = run.read("routing").to_pylist()
    assert (routing["layer_ids"], routing["tokens"], routing["top_k"], routing["experts"]) == ([7], 2, 2, b"\x00\x03\x02\x01")
    assert routing["weights"] is None, "gate weights are kept only under --routing-weights"
    (request,) = run.read("requests").to_pylist()
    assert (request["output_tokens"], request["turn"], request["finish_reason"]) == ([2, 3], 0, "stop")
    assert request["started"] == datetime(1970, 1, 1, 0, 0, 12, 500_000)
    (link,) = run.read("links").to_pylist()
    assert (link["start"], link["end"], link["method"], link["ambiguous"]) == (0, 2, "content", True)
    assert run.read("weights")["fact"].to_pylist() == ["sent"]
    assert run.read("framework_metrics").select(["name", "value"]).to_pylist() == [{"name": "loss", "value": 0.5}]


def test_gate_weights_are_recorded_where_they_are_asked_for(make: Make) -> None:
    sink = make(routing_weights=True)
    sink.record_routing(
        step=1,
        sequence_ids=["a"],
        source="rollout",
        experts=[np.zeros((2, 1, 2), int)],
        num_experts=4,
        layer_ids=[7],
        weights=[np.full((2, 1, 2), 0.25)],
    )
    (blob,) = finished(sink).read("routing")["weights"].to_pylist()
    assert np.frombuffer(blob, "<f4").tolist() == [0.25] * 4


def test_bad_arguments_are_counted_and_never_raised(make: Make) -> None:
    sink = make()
    sink.record_scores(step=0, sequence_ids=["a", "b"], source="trainer", logprobs=[[1.0]])
    rollout(sink, 0)
    count, message = sink.recorder.log.failures["rlaudit.record_scores"]
    assert count == 1
    assert "1 rows where there are 2 sequences" in message
    assert finished(sink).read("sequences").num_rows == 3


def test_tables_that_are_not_wanted_are_not_written(make: Make) -> None:
    sink = make(tables=("scores", "events"))
    rollout(sink, 0)
    run = finished(sink)
    assert (run.read("sequences").num_rows, run.read("scores").num_rows) == (0, 3)


def slow_spool(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Writing waits until the returned event is set."""
    gate, append = threading.Event(), SpoolFile.append

    def waiting(self: SpoolFile, frame: Any) -> None:
        gate.wait(30)
        append(self, frame)

    monkeypatch.setattr(SpoolFile, "append", waiting)
    return gate


def test_a_full_queue_drops_whole_batches_and_counts_them(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = slow_spool(monkeypatch)
    sink = make(queue_bytes=1 << 20)
    for step in range(20):
        rollout(sink, step, rows=8, width=8192)
    gate.set()
    run = finished(sink)
    dropped = balance(run)["dropped"]
    kept = run.read("sequences").num_rows
    assert kept + dropped["sequences"]["queue full"] == 20 * 8
    assert kept < 20 * 8
    assert kept % 8 == 0


def test_lossless_capture_waits_instead(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = slow_spool(monkeypatch)
    sink = make(queue_bytes=1 << 20, lossless=True)
    threading.Timer(0.3, gate.set).start()
    for step in range(20):
        rollout(sink, step, rows=8, width=8192)
    run = finished(sink)
    assert run.read("sequences").num_rows == 20 * 8
    assert balance(run)["dropped"] == {}


def test_sampling_keeps_whole_prompt_groups_and_the_same_ones_in_scores_and_routing(make: Make) -> None:
    sink = make(sample=0.5, routing_sample=0.25)
    ids = [f"q{i}" for i in range(400)]
    prompts = [[i // 4] for i in range(400)]
    sink.record_rollout(step=0, sequence_ids=ids, prompt_tokens=prompts, response_tokens=[[1]] * 400, logprobs=[[-1.0]] * 400)
    sink.record_scores(step=0, sequence_ids=ids, source="trainer", logprobs=[[-1.0]] * 400)
    sink.record_routing(step=0, sequence_ids=ids, source="rollout", experts=[np.zeros((1, 1, 2), int)] * 400, num_experts=4, layer_ids=[0])
    run = finished(sink)
    kept = set(run.read("sequences")["sequence_id"].to_pylist())
    by_source = {
        source: set(run.connect().execute("select sequence_id from scores where source = $1", [source]).fetchnumpy()["sequence_id"])
        for source in ("rollout", "trainer")
    }
    assert kept == by_source["rollout"] == by_source["trainer"]
    assert len(kept) % 4 == 0
    assert 120 < len(kept) < 280, "a half of 100 prompts, give or take four standard deviations"
    routed = set(run.read("routing")["sequence_id"].to_pylist())
    assert routed < kept
    assert 32 < len(routed) < 168
    assert balance(run)["dropped"]["sequences"] == {"not in the sample": 400 - len(kept)}


def test_hashed_tokens_still_compare_but_are_not_the_tokens(make: Make) -> None:
    sink = make(token_key="00" * 32)
    sink.record_rollout(step=0, sequence_ids=["a"], prompt_tokens=[[11, 12]], response_tokens=[[12, 13, 12]])
    sink.record_request(request_ids=["r"], input_tokens=[[11, 12]], output_tokens=[[12, 13, 12]])
    run = finished(sink)
    (sequence,) = run.read("sequences").to_pylist()
    (request,) = run.read("requests").to_pylist()
    assert sequence["response_tokens"] == request["output_tokens"]
    assert sequence["prompt_tokens"] == request["input_tokens"]
    assert sequence["response_tokens"][0] == sequence["response_tokens"][2] == sequence["prompt_tokens"][1] != 12
    assert len({11, 12, 13} & set(sequence["response_tokens"] + sequence["prompt_tokens"])) == 0


def test_the_bound_on_bytes_stops_capture_and_counts_what_it_skipped(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    sink = make(max_bytes=100_000)
    for step in range(10):
        rollout(sink, step, rows=4, width=2048)
    sink.recorder.flush()
    written = sink.recorder.written_bytes
    sink.recorder.close()
    assert written <= 100_000 + 4 * 2048 * 13 + 2000, "at most one frame beyond the bound"
    assert "--max-bytes 100000 reached" in (sink.recorder.stopped or "")
    assert capsys.readouterr().err.count("capture stopped") == 1
    assert sum(sink.recorder.dropped["sequences"].values()) + sink.recorder.rows["sequences"] == 40


def test_a_full_disk_stops_capture_with_one_message_and_keeps_what_was_written(
    make: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sink = make()
    rollout(sink, 0)
    sink.recorder.flush()
    real = os.write

    def full(fd: int, data: Any) -> int:
        if fd > 2:
            raise OSError(28, "No space left on device")
        return real(fd, data)

    monkeypatch.setattr(os, "write", full)
    for step in range(1, 5):
        rollout(sink, step)
    sink.recorder.flush()
    monkeypatch.setattr(os, "write", real)
    error = capsys.readouterr().err
    assert error.count("No space left on device") == 1
    assert "Training goes on" in error
    assert sum(sink.recorder.dropped["sequences"].values()) == 12
    assert finished(sink).read("sequences").num_rows == 3


def test_what_was_lost_after_capture_stopped_is_counted_in_the_run_itself(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = make()
    rollout(sink, 0)
    sink.recorder.flush()

    def full(self: SpoolFile, frame: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(SpoolFile, "append", full)
    for step in range(1, 5):
        rollout(sink, step)
    run = finished(sink)
    reason = "the run's folder can't be written: No space left on device"
    # The first refused row says "not written"; what came after says why.
    assert sum(balance(run)["dropped"]["sequences"].values()) == 12
    assert reason in balance(run)["dropped"]["scores"]
    stops = run.connect().execute("select name from events where kind = 'capture_stopped'").fetchall()
    assert stops == [(reason,)]


def test_a_run_folder_removed_in_mid_run_is_noticed_once(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    import shutil

    sink = make()
    rollout(sink, 0)
    sink.recorder.flush()
    shutil.rmtree(sink.recorder.config.run)
    for step in range(1, 4):
        rollout(sink, step)
    sink.recorder.close()
    assert capsys.readouterr().err.count("\n") == 1
    assert "removed" in (sink.recorder.stopped or "")
    assert sum(sink.recorder.dropped["sequences"].values()) == 9
    assert not Path(sink.recorder.config.run).exists(), "a folder that somebody removed is not made again"


def test_a_folder_that_takes_no_new_files_costs_nothing_while_the_spool_is_open(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = make(flush_seconds=0.05)
    rollout(sink, 0)
    sink.recorder.flush()

    def read_only(*arguments: Any, **options: Any) -> None:
        raise OSError(30, "Read-only file system")

    with monkeypatch.context() as patched:
        patched.setattr("rlaudit.capture.process_spool.SpoolFile", read_only)
        time.sleep(0.3)
        rollout(sink, 1)
        sink.recorder.flush()
    run = finished(sink)
    assert run.steps() == [0, 1]
    assert balance(run)["dropped"] == {}


def test_the_end_of_a_step_waits_for_the_writer_but_not_for_long(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = make()
    rollout(sink, 0)
    sink.step(0)
    assert sink.recorder.rows == {"sequences": 3, "scores": 3}
    gate = slow_spool(monkeypatch)
    rollout(sink, 1)
    began = time.monotonic()
    sink.step(1)
    assert time.monotonic() - began < 1.0
    gate.set()
    assert finished(sink).steps() == [0, 1]


def test_rows_carry_the_rank_from_when_it_is_known(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    sink = make()
    rollout(sink, 0)
    sink.recorder.flush()
    monkeypatch.setenv("RANK", "2")
    rollout(sink, 1)
    rows = finished(sink).read("sequences", ["step", "rank"]).to_pylist()
    assert {(row["step"], row["rank"]) for row in rows} == {(0, None), (1, 2)}


def test_a_forked_child_records_into_a_spool_of_its_own(make: Make) -> None:
    sink = make()
    rollout(sink, 0)
    sink.recorder.flush()
    pid = os.fork()
    if pid == 0:
        rollout(sink, 1)
        sink.recorder.close()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    rollout(sink, 2)
    run = finished(sink)
    assert run.steps() == [0, 1, 2]
    assert len(set(run.read("sequences")["process"].to_pylist())) == 2
    started = run.connect().execute("select detail from events where kind = 'process_started'").fetchall()
    assert [(json.loads(detail)["program"], json.loads(detail)["pid"]) for (detail,) in started] == [("(forked)", pid)]


def test_a_forked_child_does_not_report_its_parents_counts(make: Make) -> None:
    sink = make()
    sink.recorder.log.fired["loop: step"] = 5
    rollout(sink, 0)
    sink.recorder.flush()
    pid = os.fork()
    if pid == 0:
        rollout(sink, 1)
        sink.recorder.close()
        os._exit(0)
    os.waitpid(pid, 0)
    convert_leftovers(Path(sink.recorder.config.run))
    beats = Run.open(sink.recorder.config.run).connect().execute("select process, detail from events where kind = 'heartbeat'").fetchall()
    (own,) = [json.loads(detail) for process, detail in beats if f"-{pid}-" in process]
    assert (own["fired"], own["rows"]) == ({}, {"sequences": 3, "scores": 3})


def test_what_the_writer_has_taken_survives_sigkill(make: Make) -> None:
    import signal

    sink = make()
    pid = os.fork()
    if pid == 0:
        rollout(sink, 4)
        sink.recorder.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL
    convert_leftovers(Path(sink.recorder.config.run))
    assert Run.open(sink.recorder.config.run).steps() == [4]


def test_a_large_batch_is_laid_out_in_frames_and_comes_back_whole(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlaudit.capture.recorder.FRAME_BYTES", 10_000)
    monkeypatch.setattr("rlaudit.capture.process_spool.ROTATE_BYTES", 40_000)
    sink = make()
    rollout(sink, 0, rows=64, width=300)
    run = finished(sink)
    assert set(run.read("sequences")["sequence_id"].to_pylist()) == {f"s0-{i}" for i in range(64)}
    assert len(run.segments("sequences")) > 1, "spools were rotated"
    flat = [token for row in run.read("sequences").sort_by("sequence_id")["response_tokens"].to_pylist() for token in row]
    assert sorted(flat) == list(range(64 * 300))


def test_nothing_is_recorded_after_close(make: Make) -> None:
    sink = make()
    rollout(sink, 0)
    sink.recorder.close()
    rollout(sink, 1)
    assert sink.recorder.dropped["sequences"] == {"closed": 3}


def test_a_step_is_noted_at_most_once_a_second(make: Make) -> None:
    sink = make()
    began = time.monotonic()
    for step in range(200):
        sink.step(step)
    elapsed = time.monotonic() - began
    beats = finished(sink).connect().execute("select count(*) from events where kind = 'heartbeat'").fetchone()
    assert beats is not None
    assert beats[0] <= 2 + elapsed
