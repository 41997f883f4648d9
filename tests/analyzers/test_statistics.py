"""Metrics equal the frameworks' own formulas, scipy's and the bootstrap's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.stats

from rlaudit.analyzers.catalogue import CATALOGUE
from rlaudit.analyzers.statistics import QUANTILES, TokenStats
from tests.analyzers.test_token_sums import pairs, stats

Array = np.ndarray[Any, Any]


def verl_debug_metrics(rollout: Array, actor: Array, mask: Array) -> dict[str, float]:
    """verl/utils/debug/metrics.py calculate_debug_metrics, its tensor operations written in numpy (float64)."""
    actor_probs, rollout_probs = np.exp(actor)[mask], np.exp(rollout)[mask]
    diff = np.abs(rollout_probs - actor_probs)
    return {
        "training/rollout_probs_diff_max": diff.max(),
        "training/rollout_probs_diff_mean": diff.mean(),
        "training/rollout_probs_diff_std": diff.std(ddof=1),  # torch.std is unbiased
        "training/rollout_actor_probs_pearson_corr": np.corrcoef(np.stack([actor_probs, rollout_probs]))[0, 1],
    }


def verl_offpolicy_metrics(rollout: Array, trainer: Array) -> dict[str, float]:
    """verl/trainer/ppo/rollout_corr_helper.py compute_offpolicy_metrics: kl and k3_kl."""
    log_ratio = trainer - rollout
    return {"rollout_corr/kl": (rollout - trainer).mean(), "rollout_corr/k3_kl": (np.exp(log_ratio) - log_ratio - 1).mean()}


def trl_sampling_metrics(sampling: Array, old: Array, mask: Array) -> dict[str, float]:
    """trl/trainer/grpo_trainer.py _generate_and_score_completions: delta = |old - sampling| over the mask without NaN."""
    delta = np.abs(old - sampling)
    delta = delta[mask & ~np.isnan(delta)]
    return {"sampling/sampling_logp_difference/mean": delta.mean(), "sampling/sampling_logp_difference/max": delta.max()}


@pytest.mark.parametrize("framework", ["verl", "trl"])
def test_aliases_are_the_frameworks_own_numbers(framework: str) -> None:
    rollout, trainer = pairs(3000, scale=0.2)
    x, y, mask = rollout.astype(np.float64), trainer.astype(np.float64), np.ones(3000, bool)
    theirs = {**verl_debug_metrics(x, y, mask), **verl_offpolicy_metrics(x, y)} if framework == "verl" else trl_sampling_metrics(x, y, mask)
    ours = stats(rollout, trainer).metrics()
    named = {definition.aliases[framework]: name for name, definition in CATALOGUE.items() if framework in definition.aliases}
    assert set(named) == set(theirs)
    for alias, name in named.items():
        assert ours[name] == pytest.approx(theirs[alias], rel=1e-10)


def test_correlations_are_scipys() -> None:
    rollout, trainer = pairs(2000, scale=0.5)
    x, y = rollout.astype(np.float64), trainer.astype(np.float64)
    metrics = stats(rollout, trainer).metrics()
    assert metrics["pearson_logp"] == pytest.approx(scipy.stats.pearsonr(x, y)[0], rel=1e-10)
    assert metrics["pearson_prob"] == pytest.approx(scipy.stats.pearsonr(np.exp(x), np.exp(y))[0], rel=1e-10)


def test_a_correlation_without_variance_is_undefined_and_not_one() -> None:
    for rollout, trainer in (([-1, -1, -1], [-1, -2, -3]), ([-1, -2, -3], [-1, -1, -1]), ([-1, -1], [-1, -1]), ([-1], [-2])):
        assert stats(rollout, trainer).metrics()["pearson_logp"] is None


def test_no_tokens_give_no_metrics() -> None:
    assert TokenStats().metrics() == {}
    assert TokenStats().ratio_mean_error() is None


def test_every_metric_is_in_the_catalogue() -> None:
    assert {*stats(*pairs(10)).metrics(), *QUANTILES} <= set(CATALOGUE)


def clustered(seed: int, sequences: int = 400) -> tuple[Array, Array, list[int]]:
    """Log-probabilities whose differences share a part within a sequence, so that tokens are no independent units."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(5, 60, sequences)
    x = -rng.exponential(1.0, lengths.sum())
    shared = np.repeat(rng.normal(0, 0.1, sequences), lengths)
    return x.astype(np.float32), (x + shared + rng.normal(0, 0.05, lengths.sum())).astype(np.float32), lengths.tolist()


def test_standard_errors_are_those_of_a_bootstrap_over_sequences() -> None:
    x, y, lengths = clustered(0)
    d = y.astype(np.float64) - x
    spans = np.split(d, np.cumsum(lengths)[:-1])
    n = np.array(lengths)
    w, k1, k3 = (np.array([values(s).sum() for s in spans]) for values in (np.exp, np.negative, lambda s: np.expm1(s) - s))
    rng = np.random.default_rng(1)
    draws = rng.integers(0, len(n), (2000, len(n)))
    found = stats(x, y, lengths)
    assert found.ratio_mean_error() == pytest.approx((w[draws].sum(1) / n[draws].sum(1)).std(), rel=0.1)
    size = np.array([np.abs(s).sum() for s in spans])
    assert found.logp_diff_error() == pytest.approx((size[draws].sum(1) / n[draws].sum(1)).std(), rel=0.1)
    # An error over tokens would be far too small: they are not independent within a sequence.
    assert found.ratio_mean_error() > 3 * np.exp(d).std() / np.sqrt(len(d))
    assert k3.sum() > 0
    assert k1.shape == k3.shape


def test_k3_over_k1_is_one_for_two_laws_of_tokens_drawn_from_the_first() -> None:
    rng = np.random.default_rng(2)
    logits = rng.normal(0, 2, (20_000, 8))
    other = logits + rng.normal(0, 0.2, logits.shape)
    law, changed = (z - np.log(np.exp(z).sum(1, keepdims=True)) for z in (logits, other))
    token = (law + rng.gumbel(size=law.shape)).argmax(1)[:, None]
    x, y = (np.take_along_axis(each, token, 1)[:, 0] for each in (law, changed))
    ratio = stats(x, y, [100] * 200).k3_over_k1()
    assert ratio is not None
    assert abs(ratio[0] - 1) < 3 * ratio[1]
    assert ratio[1] < 0.2
    found = stats(x, y, [100] * 200)
    mean, error = found.metrics()["ratio_mean"], found.ratio_mean_error()
    assert mean is not None
    assert error is not None
    assert abs(mean - 1) < 3 * error


def test_one_sequence_has_no_interval() -> None:
    assert stats(*pairs(100)).ratio_mean_error() is None
