"""Routing of two evaluations is aligned on absolute positions and layers, and joined with the token that its forward scored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlaudit.analyzers import routing_kernel as rk
from rlaudit.analyzers import routing_rows
from rlaudit.analyzers.compiled import vectorised
from rlaudit.analyzers.grouping import load, plan
from rlaudit.analyzers.measured import measure
from rlaudit.analyzers.pairing import pair, rollout_side, trainer_side
from rlaudit.analyzers.routing_pass import ROLLOUT_TRAINER, RoutingPass, measure_routing
from rlaudit.run import Run
from tests.synthetic import experts_row, write_run


def compare(run: Run) -> dict[tuple[str, str], RoutingPass]:
    """Rollout against trainer routing of a run of one group."""
    (steps,) = plan(run)
    group = load(run, steps)
    spans = pair(group, rollout_side(group), trainer_side(group))
    return measure_routing(run, vectorised(), group, steps, {"main": (ROLLOUT_TRAINER, spans)})


def write(
    path: Path,
    routing: list[dict[str, Any]],
    *,
    prompt: int = 2,
    rollout: list[float] | None = None,
    trainer: list[float] | None = None,
    **tables: Any,
) -> Run:
    """One sequence "a" with a prompt and its log-probabilities."""
    rollout, trainer = rollout or [-1, -1, -1], trainer or [-1, -1, -1]
    sequences = [{"step": 0, "sequence_id": "a", "prompt_tokens": list(range(prompt)), "response_tokens": list(range(len(rollout)))}]
    scores = [{"step": 0, "sequence_id": "a", "source": s, "logprobs": v} for s, v in (("rollout", rollout), ("trainer", trainer))]
    return write_run(path / "run", **{"sequences": sequences, "scores": scores, "routing": routing, **tables})


def rows(tokens: int, layers: int = 1) -> np.ndarray[Any, Any]:
    """Experts 0 and 1 for every token and layer."""
    return np.tile(np.array([0, 1]), (tokens, layers, 1))


def test_the_token_of_a_flip_is_the_one_that_its_forward_scored(tmp_path: Path) -> None:
    rollout, trainer = rows(4), rows(5)
    trainer[2, 0] = [0, 2]  # absolute position 2: the first response token, whose forward scores the second one
    run = write(
        tmp_path, [experts_row("a", "rollout", rollout, num_experts=4), experts_row("a", "trainer", trainer, num_experts=4)],
        prompt=2, trainer=[-1.25, -1.5, -1.125],
    )  # fmt: skip
    effect = compare(run)["main", "equal"].effect
    np.testing.assert_array_equal(effect[rk.DIFFERS, :2], [1, 0.5])
    np.testing.assert_array_equal(effect[rk.SAME, :2], [2, 0.25 + 0.125])


def test_the_last_prompt_position_scores_the_first_response_token(tmp_path: Path) -> None:
    trainer = rows(5)
    trainer[1, 0] = [2, 3]
    run = write(
        tmp_path, [experts_row("a", "rollout", rows(4), num_experts=4), experts_row("a", "trainer", trainer, num_experts=4)],
        trainer=[-1.25, -1.5, -1.125],
    )  # fmt: skip
    assert compare(run)["main", "equal"].effect[rk.DIFFERS, 1] == 0.25


def test_rows_are_aligned_through_their_first_position(tmp_path: Path) -> None:
    rollout = np.arange(10).reshape(5, 1, 2)
    run = write(
        tmp_path,
        [experts_row("a", "rollout", rollout, num_experts=16), experts_row("a", "trainer", rollout[2:], num_experts=16, first_position=2)],
    )
    found = compare(run)["main", "equal"]
    assert found.total().tolist() == [3, 0, 6, 6, 0, 0]
    assert found.total_tokens() == (3, 0)


def test_layers_are_aligned_by_their_absolute_number(tmp_path: Path) -> None:
    rollout = rows(3, 3)
    rollout[:, 1] = [2, 3]
    trainer = rollout[:, [1, 0]]
    routing = [
        experts_row("a", "rollout", rollout, num_experts=4, layer_ids=[1, 4, 7]),
        experts_row("a", "trainer", trainer, num_experts=4, layer_ids=[4, 1]),
    ]
    run = write(tmp_path, routing)
    found = compare(run)["main", "equal"]
    assert {layer: counts[rk.DIFFERING] for layer, counts in found.by_layer().items()} == {1: 0, 4: 0}


def test_layers_that_pipeline_stages_own_are_one_token_together(tmp_path: Path) -> None:
    first, second = rows(3), rows(3)
    second[1, 0] = [0, 3]
    routing = [
        experts_row("a", "rollout", rows(3, 2), num_experts=4),
        experts_row("a", "trainer", first, num_experts=4, layer_ids=[0]),
        experts_row("a", "trainer", second, num_experts=4, layer_ids=[1]),
    ]
    found = compare(write(tmp_path, routing))["main", "equal"]
    assert {layer: counts[rk.DIFFERING] for layer, counts in found.by_layer().items()} == {0: 0, 1: 1}
    assert found.total_tokens() == (3, 1)
    assert found.joined == 1


def test_tokens_that_sequence_parallel_ranks_own_are_one_sequence_together(tmp_path: Path) -> None:
    changed = rows(2)
    changed[1, 0] = [0, 3]
    routing = [
        experts_row("a", "rollout", rows(5), num_experts=4),
        experts_row("a", "trainer", rows(3), num_experts=4),
        experts_row("a", "trainer", changed, num_experts=4, first_position=3),
    ]
    found = compare(write(tmp_path, routing))["main", "equal"]
    assert found.total_tokens() == (5, 1)


def test_other_policy_versions_are_not_compared(tmp_path: Path) -> None:
    routing = [experts_row("a", "rollout", rows(3), num_experts=4), experts_row("a", "trainer", rows(3), num_experts=4, policy_updates=1)]
    found = compare(write(tmp_path, routing))
    assert found["main", "equal"].joined == found["main", "unknown"].joined == 0
    assert found["main", "equal"].other_version == 1


UNVERSIONED = [
    experts_row("a", "rollout", rows(3), num_experts=4, policy_updates=None),
    experts_row("a", "trainer", rows(3), num_experts=4),
]


def test_a_row_without_a_version_has_that_of_its_evaluations_log_probabilities(tmp_path: Path) -> None:
    found = compare(write(tmp_path, UNVERSIONED))
    assert (found["main", "equal"].joined, found["main", "unknown"].joined) == (1, 0)


def test_unknown_policy_versions_are_kept_apart(tmp_path: Path) -> None:
    scores = [
        {"step": 0, "sequence_id": "a", "source": source, "logprobs": [-1, -1, -1], "policy_updates": None}
        for source in ("rollout", "trainer")
    ]
    found = compare(write(tmp_path, UNVERSIONED, scores=scores))
    assert (found["main", "equal"].joined, found["main", "unknown"].joined) == (0, 1)


def test_routing_of_another_evaluation_than_the_score_explains_no_difference(tmp_path: Path) -> None:
    routing = [experts_row("a", "rollout", rows(4), num_experts=4), experts_row("a", "update", rows(5), num_experts=4)]
    found = compare(write(tmp_path, routing))["main", "equal"]
    assert found.joined == 1  # the routing is compared
    assert found.effect.sum() == 0  # but the score is the trainer's


def test_an_invalid_row_is_compared_with_nothing(tmp_path: Path) -> None:
    trainer = rows(3)
    trainer[1, 0] = [2, 2]
    found = compare(
        write(tmp_path, [experts_row("a", "rollout", rows(3), num_experts=4), experts_row("a", "trainer", trainer, num_experts=4)])
    )
    assert found["main", "equal"].total().tolist() == [2, 0, 4, 4, 0, 1]
    assert found["main", "equal"].total_tokens() == (2, 0)


def test_bytes_of_the_wrong_length_are_counted_and_left_out(tmp_path: Path) -> None:
    broken = experts_row("a", "trainer", rows(3), num_experts=4, tokens=4)
    found = compare(write(tmp_path, [experts_row("a", "rollout", rows(3), num_experts=4), broken]))["main", "equal"]
    assert (found.joined, found.invalid_blob_count) == (0, 1)
    assert (found.invalid_blobs[0].expected, found.invalid_blobs[0].found) == (8, 6)


def test_two_byte_ids_are_read_at_odd_places(tmp_path: Path) -> None:
    wide = np.array([[[300, 5]], [[6, 511]], [[7, 8]]])
    routing = [
        experts_row("b", "rollout", rows(3)[:1, :, :1], num_experts=4),  # three bytes before the next blob would be odd
        experts_row("a", "rollout", wide, num_experts=512),
        experts_row("a", "trainer", wide[:, :, ::-1], num_experts=512),
    ]
    assert compare(write(tmp_path, routing))["main", "equal"].total().tolist() == [3, 0, 6, 6, 0, 0]


def test_chunks_of_any_size_give_the_same_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    sequences, scores, routing = [], [], []
    for step in range(2):
        for name in "abcdef":
            sequences.append({"step": step, "sequence_id": name, "response_tokens": list(range(6))})
            for source in ("rollout", "trainer"):
                scores.append({"step": step, "sequence_id": name, "source": source, "logprobs": (-rng.random(6)).tolist()})
                ids = rng.permuted(np.tile(np.arange(4), (8, 3, 1)), axis=2)[..., :2]
                routing.append(experts_row(name, source, ids, num_experts=4, step=step))
    run = write_run(tmp_path / "run", sequences=sequences, scores=scores, routing=routing)
    whole = measure(run).routing["main", "equal"]
    monkeypatch.setattr(routing_rows, "CHUNK_BYTES", 200)
    parts = measure(run).routing["main", "equal"]
    assert whole.joined == parts.joined == 12
    assert {key: counts.tolist() for key, counts in whole.layers.items()} == {key: counts.tolist() for key, counts in parts.layers.items()}
    np.testing.assert_allclose(whole.effect, parts.effect)
