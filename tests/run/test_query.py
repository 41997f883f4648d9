"""The views are the public query interface: their columns, their meaning, and what queries may not do."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from rlaudit import Run
from rlaudit.errors import BadOption, DamagedRun, QueryError
from rlaudit.query import connect_runs, execute, overlap, view_files
from tests.synthetic import experts_row, write_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    nan, inf = float("nan"), float("inf")
    return write_run(
        tmp_path_factory.mktemp("q") / "run",
        sequences=[
            {
                "step": 3,
                "sequence_id": "a",
                "prompt_tokens": [9, 9],
                "response_tokens": [5, 6, 7],
                "sampled_mask": [True, True, False],
                "loss_mask": [True, False, False],
            },
            {"step": 3, "sequence_id": "b", "prompt_tokens": [9], "response_tokens": [5, 6, 8]},
            {"step": 4, "sequence_id": "c", "prompt_tokens": [9], "response_tokens": []},
        ],
        scores=[
            {"step": 3, "sequence_id": "a", "source": "rollout", "logprobs": [-1.0, -2.0, None]},
            {"step": 3, "sequence_id": "a", "source": "update", "update": 0, "logprobs": [-1.5, -2.0, -3.0]},
            {"step": 3, "sequence_id": "a", "source": "update", "update": 1, "logprobs": [-9.0, -9.0, -9.0], "policy_updates": 1},
            {"step": 3, "sequence_id": "b", "source": "rollout", "logprobs": [-1.0, nan, -inf]},
            {"step": 3, "sequence_id": "b", "source": "update", "update": 0, "logprobs": [-7.0, -7.0, -7.0]},
            {"step": 3, "sequence_id": "b", "source": "trainer", "logprobs": [-1.25, -2.0, -2.0]},
        ],
        routing=[
            experts_row("a", "rollout", [[[0, 1], [2, 3]]] * 4, num_experts=4, step=3),
            experts_row("a", "update", [[[1, 0], [2, 0]]] * 5, num_experts=4, step=3),
        ],
        requests=[
            {"request_id": "r", "input_tokens": [9, 9], "output_tokens": [5, 6]},
            {"request_id": "t", "input_tokens": [9, 9, 5, 6], "output_tokens": [8]},
        ],
        links=[
            {"step": 3, "sequence_id": "a", "request_id": "r", "start": 0, "end": 2},
            {"step": 3, "sequence_id": "a", "request_id": "t", "turn": 1, "start": 2, "end": 3},
        ],
    )


def rows(run: Run, sql: str) -> list[tuple]:
    return run.connect().execute(sql).fetchall()


def test_tokens_pairs_each_token_with_the_trainer_score_where_there_is_one_else_the_first_update(run: Run) -> None:
    got = rows(run, "select sequence_id, position, trainer_source, trainer_logp from tokens where step = 3 order by all")
    assert got == [
        ("a", 0, "update", -1.5),
        ("a", 1, "update", -2.0),
        ("a", 2, "update", -3.0),
        ("b", 0, "trainer", -1.25),
        ("b", 1, "trainer", -2.0),
        ("b", 2, "trainer", -2.0),
    ]


def test_missing_nan_and_infinite_values_are_kept_apart_and_not_comparable(run: Run) -> None:
    got = rows(run, "select rollout_logp::varchar, comparable from tokens where step = 3 order by sequence_id, position")
    assert got == [("-1.0", True), ("-2.0", True), (None, False), ("-1.0", True), ("nan", False), ("-inf", False)]


def test_delta_is_trainer_minus_rollout(run: Run) -> None:
    assert rows(run, "select delta from tokens where sequence_id = 'a' and position = 0") == [(-0.5,)]


def test_masks_say_who_sampled_and_what_counted(run: Run) -> None:
    got = rows(run, "select is_sampled, in_loss from tokens where step = 3 order by sequence_id, position")
    assert got == [(True, True), (True, False), (False, False), (True, None), (True, None), (True, None)]


def test_absolute_positions_count_from_the_prompts_first_token(run: Run) -> None:
    assert rows(run, "select absolute_position from tokens where sequence_id = 'a' order by position") == [(2,), (3,), (4,)]


def test_an_empty_response_has_no_tokens(run: Run) -> None:
    assert rows(run, "select count(*) from tokens where step = 4") == [(0,)]


def test_pairs_orders_evaluations_and_knows_their_lag(run: Run) -> None:
    got = rows(run, "select distinct source_a, source_b, update_b, lag from pairs where sequence_id = 'a' order by all")
    assert got == [("rollout", "update", 0, 0), ("rollout", "update", 1, 1), ("update", "update", 1, 1)]


def test_routing_tokens_has_a_row_for_each_token_and_layer(run: Run) -> None:
    got = rows(
        run, "select absolute_position, layer, experts from routing_tokens where source = 'update' and absolute_position = 4 order by layer"
    )
    assert got == [(4, 0, [1, 0]), (4, 1, [2, 0])]
    assert rows(run, "select count(*) from routing_tokens") == [(4 * 2 + 5 * 2,)]


def test_routing_pairs_compares_sets_over_the_positions_that_both_cover(run: Run) -> None:
    got = rows(run, "select layer, count(*), min(overlap), max(overlap), bool_or(differs) from routing_pairs group by layer order by layer")
    assert got == [(0, 4, 2, 2, False), (1, 4, 1, 1, True)]


def test_turns_shows_what_went_in_what_came_out_and_what_was_consumed(run: Run) -> None:
    got = rows(run, "select turn, output_tokens, consumed_tokens, tokens_equal, input_equal from turns order by turn")
    assert got == [(0, [5, 6], [5, 6], True, True), (1, [8], [7], False, True)]


def test_steps_gives_the_core_metrics_over_comparable_tokens(run: Run) -> None:
    (got,) = rows(run, "select tokens, logp_diff_mean, k1, ratio_mean from steps where step = 3 and lag = 0")
    deltas = np.array([-0.5, 0.0, -0.25])
    assert got[0] == 3
    np.testing.assert_allclose(got[1:], [np.abs(deltas).mean(), -deltas.mean(), np.exp(deltas).mean()], rtol=1e-12)


def test_macros_are_the_fields_estimators(run: Run) -> None:
    (got,) = rows(
        run, "select k1(0.5), k2(0.5), k3(0.5), importance_ratio(0.5), ratio_beyond(0.7, 2), ratio_beyond(-0.7, 2), ratio_beyond(0.69, 2)"
    )
    np.testing.assert_allclose(got[:4], [-0.5, 0.125, np.exp(0.5) - 1.5, np.exp(0.5)], rtol=1e-15)
    assert got[4:] == (True, True, False)


def test_overlap_counts_common_ids_whatever_their_order() -> None:
    rng = np.random.default_rng(0)
    a = np.array([rng.permutation(300)[:9] for _ in range(200)], np.uint16)
    b = np.array([rng.permutation(300)[:9] for _ in range(200)], np.uint16)
    assert overlap(a, b).tolist() == [len(set(x) & set(y)) for x, y in zip(a.tolist(), b.tolist(), strict=True)]


def test_every_column_of_every_view_is_documented_and_every_documented_one_exists(run: Run) -> None:
    connection = run.connect()
    for name, text in view_files().items():
        view = re.search(r"^-- view: (\w+)$", text, re.MULTILINE)
        if view is None:
            assert "-- macros:" in text, name
            continue
        documented = re.findall(r"^-- column (\w+)", text, re.MULTILINE)
        assert documented == [row[0] for row in connection.execute(f"describe {view[1]}").fetchall()], name


def test_a_run_without_rows_answers_every_view_with_nothing(tmp_path: Path) -> None:
    connection = write_run(tmp_path / "empty").connect()
    for view in ("tokens", "pairs", "steps", "turns", "routing_tokens", "routing_pairs", "events"):
        assert connection.execute(f"select * from {view}").fetchall() == []


def test_several_runs_attach_under_their_names(run: Run) -> None:
    connection = connect_runs({"a": run, "b": run})
    assert connection.execute("select count(*) from a.tokens join b.tokens using (step, sequence_id, position)").fetchone() == (6,)


def test_a_name_that_sql_cannot_take_is_refused(run: Run) -> None:
    with pytest.raises(BadOption, match="can't name a run"):
        connect_runs({"a b": run})


@pytest.mark.parametrize("sql", ["COPY (select 1) TO 'x.csv'", "ATTACH 'x.db'", "EXPORT DATABASE 'x'", "INSTALL httpfs"])
def test_queries_change_no_files(run: Run, sql: str) -> None:
    with pytest.raises(QueryError, match="not allowed"):
        execute(run.connect(), sql)


@pytest.mark.parametrize(("sql", "message"), [("select nonsense from tokens", "nonsense"), ("selekt 1", "syntax error"), ("  ", "empty")])
def test_a_wrong_query_gets_duckdbs_own_words(run: Run, sql: str, message: str) -> None:
    with pytest.raises(QueryError, match=message):
        execute(run.connect(), sql)


def test_a_damaged_segment_is_named_by_a_query_too(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", sequences=[{"step": 0, "sequence_id": "a"}])
    path = Path(run.segments("sequences")[0].path)
    path.write_bytes(b"PAR1" + b"\0" * 40 + b"PAR1")
    with pytest.raises(DamagedRun, match=path.name):
        run.connect()


def test_a_segment_that_is_damaged_behind_its_footer_is_named_by_the_query(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", sequences=[{"step": 0, "sequence_id": "a" * 50, "prompt_tokens": list(range(500))}])
    path = Path(run.segments("sequences")[0].path)
    data = bytearray(path.read_bytes())
    data[10:400] = bytes(390)
    path.write_bytes(data)
    with pytest.raises(QueryError, match="Move that file out"):
        execute(run.connect(), "select * from sequences")


def test_parts_of_context_parallel_ranks_are_put_together_in_order(tmp_path: Path) -> None:
    key = {"step": 0, "sequence_id": "a"}
    run = write_run(
        tmp_path / "run",
        sequences=[{**key, "response_tokens": [5, 6, 7, 8]}],
        scores=[
            {**key, "source": "rollout", "logprobs": [-1.0, -2.0, -3.0, -4.0]},
            {**key, "source": "trainer", "first_position": 3, "parts": 3, "logprobs": [-4.5], "rank": 0},
            {**key, "source": "trainer", "first_position": 1, "parts": 3, "logprobs": [-2.5, -3.5], "rank": 1},
            {**key, "source": "trainer", "first_position": 0, "parts": 3, "logprobs": [-1.5], "rank": 0},
        ],
    )
    assert rows(run, "select position, delta from tokens order by position") == [(0, -0.5), (1, -0.5), (2, -0.5), (3, -0.5)]
    assert rows(run, "select count(*) from pairs") == [(4,)]


def test_an_evaluation_with_a_missing_part_is_left_out_and_not_guessed(tmp_path: Path) -> None:
    key = {"step": 0, "sequence_id": "a"}
    run = write_run(
        tmp_path / "run",
        sequences=[{**key, "response_tokens": [5, 6, 7]}],
        scores=[
            {**key, "source": "rollout", "logprobs": [-1.0, -2.0, -3.0]},
            {**key, "source": "trainer", "first_position": 0, "parts": 3, "logprobs": [-1.0]},
            {**key, "source": "trainer", "first_position": 2, "parts": 3, "logprobs": [-3.0]},
        ],
    )
    assert rows(run, "select trainer_logp, comparable from tokens") == [(None, False)] * 3


def test_routing_that_lies_in_parts_is_compared_part_by_part(tmp_path: Path) -> None:
    """Two pipeline stages own two layers each, two sequence-parallel ranks a half of the tokens each."""
    rng = np.random.default_rng(0)
    whole = np.array([[rng.permutation(8)[:2] for _ in range(4)] for _ in range(6)])
    other = whole.copy()
    other[4, 2] = (other[4, 2] + 1) % 8
    parts = [
        {**experts_row("a", "trainer", other[low:high][:, layers], num_experts=8, parts=4, first_position=low), "layer_ids": layers}
        for low, high in ((0, 3), (3, 6))
        for layers in ([0, 1], [2, 3])
    ]
    run = write_run(
        tmp_path / "run", sequences=[{"step": 0, "sequence_id": "a"}], routing=[experts_row("a", "rollout", whole, num_experts=8), *parts]
    )
    assert rows(run, "select count(*), count(distinct (absolute_position, layer)) from routing_pairs") == [(24, 24)]
    assert rows(run, "select absolute_position, layer from routing_pairs where differs") == [(4, 2)]
