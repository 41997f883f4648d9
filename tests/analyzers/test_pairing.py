"""Which scores are compared: the join by key, lags, parts and lengths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlaudit.analyzers.grouping import UNKNOWN, load, plan
from rlaudit.analyzers.pairing import Joined, LengthMismatch, Spans, pair, recompute_side, rollout_side, trainer_side, update_side
from tests.synthetic import write_run


def score(source: str, logprobs: list[float | None], sequence_id: str = "a", **more: Any) -> dict[str, Any]:
    return {"step": 0, "sequence_id": sequence_id, "source": source, "logprobs": logprobs, **more}


def sequence(length: int, sequence_id: str = "a", **more: Any) -> dict[str, Any]:
    return {"step": 0, "sequence_id": sequence_id, "response_tokens": list(range(length)), **more}


class Compared:
    """Spans of one run, read back as values."""

    def __init__(
        self, path: Path, sequences: list[dict[str, Any]], scores: list[dict[str, Any]], sides: Any = (rollout_side, trainer_side)
    ) -> None:
        run = write_run(path / "run", sequences=sequences, scores=scores)
        (steps,) = plan(run)
        self.group = load(run, steps)
        self.joined = Joined()
        self.spans: Spans = pair(self.group, sides[0](self.group), sides[1](self.group), self.joined)

    def values(self) -> list[tuple[list[float], list[float], int | None]]:
        """(rollout values, trainer values, lag) of every span, in order of sequence and position."""
        flat = self.group.logprobs.values
        return [
            (flat[a : a + n].tolist(), flat[b : b + n].tolist(), None if lag == UNKNOWN else int(lag))
            for a, b, n, lag in zip(self.spans.a_start, self.spans.b_start, self.spans.length, self.spans.lag, strict=True)
        ]


def test_rows_are_joined_by_key_and_not_by_order(tmp_path: Path) -> None:
    found = Compared(
        tmp_path,
        [sequence(1, "a"), sequence(1, "b"), sequence(1, "a", step=1)],
        [score("trainer", [-5], "b"), score("rollout", [-1], "a"), score("rollout", [-3], "a", step=1), score("rollout", [-2], "b"),
         score("trainer", [-6], "a", step=1), score("trainer", [-4], "a")],
    )  # fmt: skip
    assert found.values() == [([-1], [-4], 0), ([-2], [-5], 0), ([-3], [-6], 0)]


def test_attempts_of_the_same_step_are_kept_apart(tmp_path: Path) -> None:
    found = Compared(
        tmp_path,
        [sequence(1), sequence(1, attempt=1)],
        [score("rollout", [-1]), score("trainer", [-2]), score("rollout", [-3], attempt=1), score("trainer", [-4], attempt=1)],
    )
    assert found.values() == [([-1], [-2], 0), ([-3], [-4], 0)]


def test_the_trainers_own_score_comes_before_the_first_update(tmp_path: Path) -> None:
    scores = [score("rollout", [-1]), score("update", [-3], update=0), score("trainer", [-2]), score("update", [-4], update=1)]
    assert Compared(tmp_path, [sequence(1)], scores).values() == [([-1], [-2], 0)]


def test_without_a_trainer_score_the_first_update_counts(tmp_path: Path) -> None:
    scores = [score("rollout", [-1]), score("update", [-4], update=2), score("update", [-3], update=1, policy_updates=1)]
    assert Compared(tmp_path, [sequence(1)], scores).values() == [([-1], [-3], 1)]


def test_the_noise_floor_compares_trainer_and_first_update(tmp_path: Path) -> None:
    scores = [score("trainer", [-2]), score("update", [-4], update=1), score("update", [-3])]
    assert Compared(tmp_path, [sequence(1)], scores, (recompute_side, update_side)).values() == [([-2], [-3], 0)]


@pytest.mark.parametrize(("rollout", "trainer", "lag"), [(3, 3, 0), (3, 5, 2), (None, 5, None), (3, None, None)])
def test_the_lag_is_in_optimizer_steps_and_unknown_where_a_side_is(
    tmp_path: Path, rollout: int | None, trainer: int | None, lag: int | None
) -> None:
    scores = [score("rollout", [-1], policy_updates=rollout), score("trainer", [-2], policy_updates=trainer)]
    assert Compared(tmp_path, [sequence(1)], scores).values() == [([-1], [-2], lag)]


def test_a_sequence_sampled_under_two_policy_versions_is_cut_where_they_change(tmp_path: Path) -> None:
    spans = [{"start": 0, "end": 2, "version": "v3", "updates": 3}, {"start": 2, "end": 3, "version": "v4", "updates": 4}]
    scores = [score("rollout", [-1, -2, -3], policy_updates=3), score("trainer", [-4, -5, -6], policy_updates=4)]
    found = Compared(tmp_path, [sequence(3, version_spans=spans)], scores)
    assert found.values() == [([-1, -2], [-4, -5], 1), ([-3], [-6], 0)]


def parted(source: str, parts: list[tuple[int, list[float]]], of: int) -> list[dict[str, Any]]:
    """Rows of one evaluation that ranks wrote in parts: (first position, log-probabilities)."""
    return [score(source, values, first_position=first, parts=of) for first, values in parts]


def test_parts_of_context_parallel_ranks_are_put_together(tmp_path: Path) -> None:
    scores = [score("rollout", [-1, -2, -3]), *parted("trainer", [(2, [-6]), (0, [-4, -5])], of=2)]
    assert Compared(tmp_path, [sequence(3)], scores).values() == [([-1, -2], [-4, -5], 0), ([-3], [-6], 0)]


@pytest.mark.parametrize("parts", [[(0, [-1]), (2, [-1])], [(0, [-1, -1]), (1, [-1, -1])], [(1, [-1]), (2, [-1])]])
def test_parts_that_leave_a_gap_or_overlap_are_withheld(tmp_path: Path, parts: list[tuple[int, list[float]]]) -> None:
    found = Compared(tmp_path, [sequence(3)], [score("rollout", [-1, -2, -3]), *parted("trainer", parts, of=2)])
    assert found.values() == []
    assert found.joined.length_mismatches == 1


def test_an_evaluation_that_lacks_a_part_is_left_out_and_no_length_mismatch(tmp_path: Path) -> None:
    found = Compared(tmp_path, [sequence(3)], [score("rollout", [-1, -2, -3]), *parted("trainer", [(0, [-4, -5])], of=2)])
    assert found.values() == []
    assert (found.joined.length_mismatches, found.joined.broken, found.joined.unscored) == (0, 1, [])


def test_a_whole_evaluation_stands_in_for_one_that_lacks_a_part(tmp_path: Path) -> None:
    scores = [score("rollout", [-1, -2]), *parted("trainer", [(0, [-4])], of=2), score("update", [-5, -6])]
    assert Compared(tmp_path, [sequence(2)], scores).values() == [([-1, -2], [-5, -6], 0)]


@pytest.mark.parametrize(("response", "rollout", "trainer"), [(3, 2, 3), (3, 3, 2), (3, 2, 2), (2, 3, 3)])
def test_another_length_withholds_the_sequence_and_uses_no_aligned_prefix(
    tmp_path: Path, response: int, rollout: int, trainer: int
) -> None:
    scores = [
        score("rollout", [-1.0] * rollout),
        score("trainer", [-1.0] * trainer),
        score("rollout", [-2], "b"),
        score("trainer", [-3], "b"),
    ]
    found = Compared(tmp_path, [sequence(response), sequence(1, "b")], scores)
    assert found.values() == [([-2], [-3], 0)]
    assert found.joined.length_mismatches == 1
    assert found.joined.examples == [LengthMismatch(0, "a", response, rollout, trainer, None)]


def test_a_mask_of_another_length_withholds_the_sequence(tmp_path: Path) -> None:
    found = Compared(tmp_path, [sequence(2, sampled_mask=[True])], [score("rollout", [-1, -2]), score("trainer", [-1, -2])])
    assert found.values() == []
    assert found.joined.examples == [LengthMismatch(0, "a", 2, 2, 2, 1)]


def test_only_training_sequences_are_compared(tmp_path: Path) -> None:
    scores = [score("rollout", [-1]), score("trainer", [-2])]
    assert Compared(tmp_path, [sequence(1, phase="eval")], scores).values() == []


def test_misses_are_counted_both_ways(tmp_path: Path) -> None:
    found = Compared(
        tmp_path,
        [sequence(1, name) for name in ("both", "no rollout", "no trainer", "neither")] + [sequence(0, "empty")],
        [score("rollout", [-1], "both"), score("trainer", [-1], "both"), score("trainer", [-1], "no rollout"),
         score("rollout", [-1], "no trainer"),
         score("rollout", [], "empty"), score("trainer", [], "empty")],
    )  # fmt: skip
    joined = found.joined
    assert (joined.sequences, joined.joined, joined.without_rollout, joined.without_trainer, joined.without_both) == (5, 2, 1, 1, 1)
    assert joined.empty == 1
    assert joined.unscored_by_step == {0: 3}


def test_repeated_rows_are_counted_and_the_first_one_is_used(tmp_path: Path) -> None:
    found = Compared(tmp_path, [sequence(1), sequence(1)], [score("rollout", [-1]), score("rollout", [-9]), score("trainer", [-2])])
    assert found.values() == [([-1], [-2], 0)]
    assert (found.joined.duplicate_scores, found.group.duplicate_sequences) == (1, 1)


def test_scores_of_no_recorded_sequence_are_counted(tmp_path: Path) -> None:
    found = Compared(tmp_path, [sequence(1)], [score("rollout", [-1], "other"), score("rollout", [-1]), score("trainer", [-1])])
    assert found.group.orphan_scores == 1
    assert len(found.values()) == 1
