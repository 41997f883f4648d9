"""Which engine call produced what: links found by content, and what is derived from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlaudit.lists import list_column
from rlaudit.prefix_hashes import Powers, Prefixes, concatenated
from rlaudit.run import Run
from tests.synthetic import experts_row, write_run


def _links(run: Run) -> list[dict[str, Any]]:
    rows = run.read("links").to_pylist()
    return sorted(rows, key=lambda row: (row["step"], row["sequence_id"], row["start"]))


def _call(name: str, given: list[int], returned: list[int], **more: Any) -> dict[str, Any]:
    return {"request_id": name, "input_tokens": given, "output_tokens": returned, **more}


def _sequence(name: str, prompt: list[int], response: list[int], step: int = 0, **more: Any) -> dict[str, Any]:
    return {"step": step, "sequence_id": name, "prompt_tokens": prompt, "response_tokens": response, **more}


def _pairs(run: Run) -> list[tuple[str, str, int, int, str]]:
    return [(link["sequence_id"], link["request_id"], link["start"], link["end"], link["method"]) for link in _links(run)]


def test_samples_of_one_call_go_to_the_sequences_with_their_tokens(tmp_path: Path) -> None:
    run = write_run(
        tmp_path / "run",
        sequences=[_sequence("a", [1, 2], [3, 4, 5]), _sequence("b", [1, 2], [3, 4, 6])],
        requests=[_call("r0", [1, 2], [3, 4, 6]), _call("r1", [1, 2], [3, 4, 5])],
    )
    assert _pairs(run) == [("a", "r1", 0, 3, "content"), ("b", "r0", 0, 3, "content")]
    assert not any(link["ambiguous"] for link in _links(run))


def test_clones_in_a_group_are_each_linked_once_and_ambiguous(tmp_path: Path) -> None:
    run = write_run(
        tmp_path / "run",
        sequences=[_sequence("a", [1, 2], [3, 4, 5]), _sequence("b", [1, 2], [3, 4, 5])],
        requests=[_call("r0", [1, 2], [3, 4, 5]), _call("r1", [1, 2], [3, 4, 5])],
    )
    assert {link["request_id"] for link in _links(run)} == {"r0", "r1"}
    assert all(link["ambiguous"] for link in _links(run))


def test_two_turns_are_numbered_and_cover_what_was_sampled(tmp_path: Path) -> None:
    run = write_run(
        tmp_path / "run",
        sequences=[_sequence("a", [1, 2], [3, 4, 90, 91, 5, 6], sampled_mask=[True, True, False, False, True, True])],
        requests=[_call("r0", [1, 2], [3, 4]), _call("r1", [1, 2, 3, 4, 90, 91], [5, 6])],
    )
    assert [(link["request_id"], link["turn"], link["start"], link["end"], link["aligned"]) for link in _links(run)] == [
        ("r0", 0, 0, 2, True),
        ("r1", 1, 4, 6, True),
    ]


def test_a_partial_rollout_that_was_resumed_has_two_calls(tmp_path: Path) -> None:
    run = write_run(
        tmp_path / "run",
        sequences=[_sequence("a", [1, 2], [3, 4, 5, 6])],
        requests=[_call("r0", [1, 2], [3, 4], finish_reason="abort"), _call("r1", [1, 2, 3, 4], [5, 6])],
    )
    assert _pairs(run) == [("a", "r0", 0, 2, "content"), ("a", "r1", 2, 4, "content")]


def test_an_aborted_call_whose_tokens_begin_another_sample_is_not_consumed(tmp_path: Path) -> None:
    run = write_run(
        tmp_path / "run",
        sequences=[_sequence("a", [1, 2], [3, 4, 5, 6])],
        requests=[_call("gone", [1, 2], [3, 4], finish_reason="abort"), _call("r1", [1, 2], [3, 4, 5, 6])],
    )
    assert _pairs(run) == [("a", "r1", 0, 4, "content")]


def test_evaluation_in_between_is_left_alone(tmp_path: Path) -> None:
    run = write_run(
        tmp_path / "run",
        sequences=[_sequence("a", [1, 2], [3, 4, 5])],
        requests=[_call("eval", [1, 2], [3, 4, 5], phase="eval"), _call("r1", [1, 2], [3, 4, 5])],
    )
    assert _pairs(run) == [("a", "r1", 0, 3, "content")]
    assert not _links(run)[0]["ambiguous"]


def test_a_stripped_stop_token_is_linked_by_what_agrees(tmp_path: Path) -> None:
    run = write_run(
        tmp_path / "run",
        sequences=[_sequence("a", [1, 2], [3, 4, 5]), _sequence("b", [1, 2], [7, 8, 9])],
        requests=[_call("r0", [1, 2], [7, 8, 9, 0]), _call("r1", [1, 2], [3, 4, 5, 0])],
    )
    assert _pairs(run) == [("a", "r1", 0, 3, "content/prefix"), ("b", "r0", 0, 3, "content/prefix")]


def test_a_history_that_was_tokenised_anew_is_linked_by_its_output_and_not_aligned(tmp_path: Path) -> None:
    run = write_run(
        tmp_path / "run",
        sequences=[_sequence("a", [1, 2], [3, 4, 90, 5, 6, 7], sampled_mask=[True, True, False, True, True, True])],
        requests=[_call("r0", [1, 2], [3, 4]), _call("r1", [1, 2, 33, 44, 90], [5, 6, 7])],
    )
    assert _pairs(run) == [("a", "r0", 0, 2, "content"), ("a", "r1", 3, 6, "content/output")]
    assert [link["aligned"] for link in _links(run)] == [True, False]


def test_links_that_the_framework_made_stay_and_learn_whether_they_are_aligned(tmp_path: Path) -> None:
    run = write_run(
        tmp_path / "run",
        sequences=[_sequence("a", [1, 2], [3, 4]), _sequence("b", [1, 2], [3, 4])],
        requests=[_call("r0", [1, 2], [3, 4]), _call("r1", [1, 9], [3, 4])],
        links=[
            {"step": 0, "sequence_id": "a", "request_id": "r0", "end": 2},
            {"step": 0, "sequence_id": "b", "request_id": "r1", "end": 2},
        ],
    )
    assert [(link["request_id"], link["method"], link["aligned"]) for link in _links(run)] == [
        ("r0", "framework", True),
        ("r1", "framework", False),
    ]


def test_engine_logprobs_become_rollout_scores_where_the_trainer_has_none(tmp_path: Path) -> None:
    run = write_run(
        tmp_path / "run",
        sequences=[_sequence("a", [1, 2], [3, 4, 90, 5], sampled_mask=[True, True, False, True])],
        requests=[
            _call("r0", [1, 2], [3, 4], logprobs=[-0.5, -1.5], logprob_mode="tempered", temperature=0.7, policy_version="v3", backend="x"),
            _call("r1", [1, 2, 3, 4, 90], [5], logprobs=[-2.5], logprob_mode="tempered", temperature=0.7, policy_version="v4"),
        ],
        weights=[
            {"fact": "sent", "policy_version": "v3", "policy_updates": 3},
            {"fact": "sent", "policy_version": "v4", "policy_updates": 4},
        ],
    )
    rows = sorted(run.read("scores").to_pylist(), key=lambda row: row["first_position"])
    assert [(r["source"], r["first_position"], r["parts"], r["logprobs"], r["policy_updates"]) for r in rows] == [
        ("rollout", 0, 3, [-0.5, -1.5], 3),
        ("rollout", 2, 3, [None], None),
        ("rollout", 3, 3, [-2.5], 4),
    ]
    assert (rows[0]["temperature"], rows[0]["logprob_mode"], rows[0]["backend"], rows[0]["forward"]) == (0.7, "tempered", "x", "decode")


def test_engine_logprobs_stand_beside_those_that_the_trainer_has(tmp_path: Path) -> None:
    run = write_run(
        tmp_path / "run",
        sequences=[_sequence("a", [1, 2], [3, 4])],
        scores=[{"step": 0, "sequence_id": "a", "source": "rollout", "logprobs": [-0.5, -1.0]}],
        requests=[_call("r0", [1, 2], [3, 4], logprobs=[-0.5, -1.5])],
    )
    assert {row["source"] for row in run.read("scores").to_pylist()} == {"rollout", "engine"}


def test_version_spans_of_a_call_become_stretches(tmp_path: Path) -> None:
    spans = [{"start": 0, "end": 1, "version": "v1", "updates": None}, {"start": 1, "end": 3, "version": "v2", "updates": None}]
    run = write_run(
        tmp_path / "run",
        sequences=[_sequence("a", [1], [3, 4, 5])],
        requests=[_call("r0", [1], [3, 4, 5], logprobs=[-1.0, -2.0, -3.0], version_spans=spans)],
        weights=[{"fact": "sent", "policy_version": "v2", "policy_updates": 7}],
    )
    rows = sorted(run.read("scores").to_pylist(), key=lambda row: row["first_position"])
    assert [(r["first_position"], r["logprobs"], r["policy_version"], r["policy_updates"]) for r in rows] == [
        (0, [-1.0], "v1", None),
        (1, [-2.0, -3.0], "v2", 7),
    ]


@pytest.fixture
def routed(tmp_path: Path) -> tuple[Run, np.ndarray[Any, Any]]:
    """Two turns, prompt of 2: the second call computed all rows anew, the first one's count up to its last sampled token."""
    ids = np.arange(5 * 2 * 2).reshape(5, 2, 2) % 16
    first, second = ids[:3] + 16, ids
    sequence = _sequence("a", [1, 2], [3, 4, 90, 5], sampled_mask=[True, True, False, True])
    run = write_run(
        tmp_path / "run",
        sequences=[sequence],
        requests=[_call("r0", [1, 2], [3, 4]), _call("r1", [1, 2, 3, 4, 90], [5])],
        routing=[
            experts_row(None, "rollout", first, num_experts=64, step=None, request_id="r0"),  # type: ignore[arg-type]
            experts_row(None, "rollout", second, num_experts=64, step=None, request_id="r1"),  # type: ignore[arg-type]
            experts_row("a", "trainer", np.concatenate([first, second[3:]]), num_experts=64, request_id=None),
        ],
    )
    return run, np.concatenate([first, second[3:]])


def test_routing_by_request_is_read_under_its_sequence(routed: tuple[Run, np.ndarray[Any, Any]]) -> None:
    run, expected = routed
    rows = (
        run.connect()
        .execute("SELECT absolute_position, layer, experts FROM routing_tokens WHERE source = 'rollout' AND sequence_id = 'a' ORDER BY ALL")
        .fetchall()
    )
    assert [(position, layer) for position, layer, _ in rows] == [(p, layer) for p in range(5) for layer in range(2)]
    np.testing.assert_array_equal(np.array([ids for _, _, ids in rows]).reshape(5, 2, 2), expected)


def test_the_report_compares_routing_by_request(routed: tuple[Run, np.ndarray[Any, Any]]) -> None:
    from rlaudit.analyzers.measured import measure

    measured = measure(routed[0])
    passes = [measured.routing["main", lag] for lag in ("equal", "unknown")]
    assert sum(p.total_tokens()[0] for p in passes) == 5
    assert sum(p.total_tokens()[1] for p in passes) == 0


def test_what_is_derived_is_kept_and_made_anew_when_rows_come(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run = write_run(folder, sequences=[_sequence("a", [1], [3, 4, 5])], requests=[_call("r0", [1], [3, 4, 5], logprobs=[-1.0, -1.0, -1.0])])
    run.keep_derived()
    kept = sorted(path.name for path in folder.glob("*/*derived*"))
    assert len(kept) == 2
    write_run(folder, process="host-2-0", sequences=[_sequence("b", [1], [6, 7, 8])], requests=[_call("r1", [1], [6, 7, 8])])
    again = Run.open(folder)
    assert len(_links(again)) == 2
    again.keep_derived()
    assert not {path.name for path in folder.glob("*/*derived*")} & set(kept)
    assert len(_links(Run.open(folder))) == 2


TOKENS = st.lists(st.integers(0, 5), max_size=12)


@settings(max_examples=60, deadline=None)
@given(st.lists(TOKENS, min_size=1, max_size=6), st.data())
def test_hashes_of_spans_and_concatenations_are_those_of_the_lists(rows: list[list[int]], data: st.DataObject) -> None:
    import pyarrow as pa

    powers = Powers()
    table = Prefixes(list_column(pa.chunked_array([pa.array(rows, pa.list_(pa.int32()))])), powers)
    row = data.draw(st.integers(0, len(rows) - 1))
    start = data.draw(st.integers(0, len(rows[row])))
    count = data.draw(st.integers(0, len(rows[row]) - start))
    alone = Prefixes(
        list_column(pa.chunked_array([pa.array([rows[row][:start], rows[row][start : start + count]], pa.list_(pa.int32()))])), powers
    )
    assert table.span(np.array([row]), np.array([start]), np.array([count])) == alone.whole()[1:]
    joined = concatenated(alone.whole()[:1], np.array([start]), alone.whole()[1:], powers)
    assert joined == table.at(np.array([row]), np.array([start + count]))
