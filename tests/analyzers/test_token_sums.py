"""Sums over tokens equal plain numpy over the same tokens, however they are cut into spans, blocks and merges."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlaudit.analyzers import token_sums as ts
from rlaudit.analyzers.statistics import TokenStats

Array = np.ndarray[Any, Any]
LOGPROBS = st.floats(-30, -(2.0**-20), width=32)


def measured(rollout: Any, trainer: Any, lengths: list[int] | None = None, missing: Any = None, sampled: Any = None) -> ts.Measured:
    """Measure two aligned arrays, cut into consecutive spans of ``lengths``."""
    x, y = np.asarray(rollout, np.float32), np.asarray(trainer, np.float32)
    lengths = lengths or [len(x)]
    start = np.cumsum(lengths) - lengths
    tokens = ts.tokens_of(np.concatenate([x, y]), missing, sampled)
    return ts.measure(tokens, start, start + len(x), start if sampled is not None else np.full(len(start), -1), np.array(lengths))


def stats(rollout: Any, trainer: Any, lengths: list[int] | None = None) -> TokenStats:
    return TokenStats.of(measured(rollout, trainer, lengths))


def assert_equal(a: TokenStats, b: TokenStats) -> None:
    assert (a.tokens, a.clusters, a.counts) == (b.tokens, b.clusters, b.counts)
    for name in ("mean", "squares", "cross", "total", "largest"):
        np.testing.assert_allclose(getattr(a.sums, name), getattr(b.sums, name), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(a.products, b.products, rtol=1e-9, atol=1e-9)


def pairs(n: int, seed: int = 0, scale: float = 0.05) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    x = -rng.exponential(1.5, n).astype(np.float32)
    return x, (x * np.exp(rng.normal(0, scale, n))).astype(np.float32)


def test_every_metric_is_numpys_own_over_the_same_tokens() -> None:
    rollout, trainer = pairs(5000, scale=0.3)
    x, y = rollout.astype(np.float64), trainer.astype(np.float64)
    d, p, q = y - x, np.exp(x), np.exp(y)
    w = np.exp(d)
    assert stats(rollout, trainer, [1000, 1, 3999]).metrics() == pytest.approx(
        {
            "pearson_prob": np.corrcoef(p, q)[0, 1],
            "pearson_logp": np.corrcoef(x, y)[0, 1],
            "prob_diff_mean": np.abs(p - q).mean(),
            "prob_diff_std": np.abs(p - q).std(ddof=1),
            "prob_diff_max": np.abs(p - q).max(),
            "logp_diff_mean": np.abs(d).mean(),
            "logp_diff_std": np.abs(d).std(ddof=1),
            "logp_diff_max": np.abs(d).max(),
            "k1": -d.mean(),
            "k3": (w - 1 - d).mean(),
            "ratio_mean": w.mean(),
            "ratio_gt2": (np.maximum(w, 1 / w) > 2).mean(),
            "ess": 1 / np.mean((w / w.mean()) ** 2),
        },
        rel=1e-10,
    )


@pytest.mark.parametrize("delta", [1e-7, 1e-4, 0.01, 0.0624, 0.0626, 0.5, 3.0, -1e-7, -0.06, -0.07, -8.0])
def test_k3_keeps_its_digits_where_exp_minus_one_minus_delta_cancels(delta: float) -> None:
    x = np.float32(-0.5 if delta < 0 else -9.0)
    y = np.float32(x + delta)
    d = float(y) - float(x)
    series = math.fsum(d**n / math.factorial(n) for n in range(2, 60))  # exp(d) - 1 - d, term by term
    assert measured([x], [y]).sums.total[ts.K3] == pytest.approx(series, rel=1e-11)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(LOGPROBS, LOGPROBS), min_size=3, max_size=40), st.data())
def test_merging_gives_the_statistics_of_all_tokens_in_any_grouping(tokens: list[tuple[float, float]], data: Any) -> None:
    x, y = np.array(tokens, np.float32).T
    first = data.draw(st.integers(1, len(x) - 2))
    second = data.draw(st.integers(first + 1, len(x) - 1))
    cuts = [slice(0, first), slice(first, second), slice(second, None)]
    parts = [lambda cut=cut: stats(x[cut], y[cut]) for cut in cuts]
    left, right = parts[0](), parts[1]()
    left.add(parts[1]())
    left.add(parts[2]())  # (a + b) + c
    right.add(parts[2]())
    outer = parts[0]()
    outer.add(right)  # a + (b + c)
    assert_equal(left, outer)
    assert_equal(left, stats(x, y, [first, second - first, len(x) - second]))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(LOGPROBS, LOGPROBS), min_size=2, max_size=30), st.randoms())
def test_the_order_of_sequences_does_not_matter(tokens: list[tuple[float, float]], random: Any) -> None:
    shuffled = random.sample(tokens, len(tokens))
    assert_equal(*(stats(*np.array(each, np.float32).T, [1] * len(each)) for each in (tokens, shuffled)))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.floats(-8, -2, width=16), st.floats(-8, -2, width=16)), min_size=2, max_size=30), st.integers(-4, 1))
def test_a_constant_added_to_both_sides_changes_no_statistic_of_delta(tokens: list[tuple[float, float]], shift: int) -> None:
    x, y = np.array(tokens, np.float32).T
    before, after = stats(x, y).metrics(), stats(x + np.float32(shift), y + np.float32(shift)).metrics()
    for name in ("logp_diff_mean", "logp_diff_std", "logp_diff_max", "k1", "k3", "ratio_mean", "ratio_gt2", "ess"):
        assert after[name] == pytest.approx(before[name], rel=1e-9, abs=1e-12)


def test_blocks_may_cut_a_sequence_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = pairs(1000)
    lengths = [1, 400, 2, 597]
    whole = stats(x, y, lengths)
    for block in (7, 64, 399, 1000):
        monkeypatch.setattr(ts, "BLOCK", block)
        assert_equal(stats(x, y, lengths), whole)


def test_many_short_sequences_are_gathered_like_few_long_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = pairs(900)
    by_index = stats(x, y, [3] * 300)
    monkeypatch.setattr(ts, "FEW_SPANS", 1000)
    assert_equal(stats(x, y, [3] * 300), by_index)


def test_a_nearly_constant_side_keeps_its_variance() -> None:
    rng = np.random.default_rng(1)
    x = (-1 - 1e-5 * rng.random(4000)).astype(np.float32)  # variance of about 1e-11 beside a mean of 1
    y = (x + 1e-6 * rng.standard_normal(4000)).astype(np.float32)
    expected = np.corrcoef(x.astype(np.float64), y.astype(np.float64))[0, 1]
    assert stats(x, y).metrics()["pearson_logp"] == pytest.approx(expected, rel=1e-6)


def test_null_nan_and_infinite_values_are_counted_and_left_out() -> None:
    x = np.array([-1, np.nan, -2, -3, -1, -2], np.float32)
    y = np.array([-1.5, -1, np.inf, -3, -1, -2.25], np.float32)
    missing = np.zeros(12, bool)
    missing[3] = missing[6 + 4] = True  # the rollout's fourth and the trainer's fifth value are null
    found = measured(x, y, missing=missing)
    assert found.sums.counts.missing == [1, 1]
    assert found.sums.counts.nonfinite == [1, 1]
    assert found.sums.n == 2
    assert found.sums.mean[ts.SIZE] == pytest.approx((0.5 + 0.25) / 2)


def test_a_value_missing_on_both_sides_is_missing_and_not_infinite() -> None:
    missing = np.array([False, True, False, True])
    found = measured([-1, np.nan], [-1, np.nan], missing=missing)
    assert (found.sums.counts.missing, found.sums.counts.nonfinite, found.sums.n) == ([1, 1], [0, 0], 1)


def test_tokens_that_the_policy_did_not_sample_enter_nothing() -> None:
    sampled = np.array([True, False, True, False])
    found = measured([-1, -1, -2, -1], [-1.25, -9, -2, np.nan], sampled=sampled)
    assert found.sums.counts.not_sampled == 2
    assert found.sums.counts.nonfinite == [0, 0]
    assert found.sums.mean[ts.SIZE] == 0.125
    np.testing.assert_array_equal(found.sizes, np.float32([0.25, 0.0]))


def test_spans_get_their_own_sums_where_tokens_are_left_out() -> None:
    sampled = np.array([True, False, False, False, True, True])
    found = measured([-1, -1, -1, -1, -1, -2], [-1.5, -9, -9, -9, -1, -2.25], [2, 2, 2], sampled=sampled)
    np.testing.assert_array_equal(found.spans.n, [1, 0, 2])
    np.testing.assert_allclose(found.spans.size, [0.5, 0, 0.25])


def test_zeros_count_as_placeholders_only_where_the_other_side_disagrees() -> None:
    counts = measured([0.0, 0.0, -0.5, 0.0], [0.0, -1e-4, 0.0, -0.7]).sums.counts
    assert counts.zero == [3, 2]
    assert counts.bad_zero == [1, 1]  # -0.7 against a rollout of 0; a trainer of 0 against -0.5


def test_equal_bits_and_ratios_beyond_two_are_counted_exactly() -> None:
    counts = measured([-1, -1, -1, -1], [-1, -1, -1 - 0.6931, -1 - 0.6932]).sums.counts
    assert (counts.equal_bits, counts.beyond_2) == (2, 1)  # log 2 = 0.69315


def test_log_probabilities_below_what_exp_can_hold_give_no_false_difference() -> None:
    found = measured([-800.0, -1.0], [-1.0, -1.0])
    assert found.sums.largest[1] == pytest.approx(math.exp(-1), rel=1e-6)


def test_an_overflowing_ratio_is_withheld_and_not_infinite() -> None:
    metrics = stats([-9999.0, -1.0], [-1.0, -1.0]).metrics()
    assert metrics["ratio_mean"] is None
    assert metrics["k3"] is None
    assert metrics["logp_diff_max"] == 9998.0
