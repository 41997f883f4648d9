"""Quantiles are order statistics where values are at hand, and within a bin of them otherwise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlaudit.analyzers import quantiles as q

Array = np.ndarray[Any, Any]
SHARES = [0.5, 0.9, 0.99, 0.999]
rng = np.random.default_rng(0)
SAMPLES: dict[str, Array] = {
    "heavy tail": np.abs(rng.standard_t(2, 300_001)),
    "all zero": np.zeros(50_000),
    "mostly zero": np.where(rng.random(100_000) < 0.97, 0, rng.random(100_000)),
    "one value": np.full(9000, 0.105),
    "three values": np.repeat([0.0, 1.0, 2.0], 20_000),
    "ascending": np.sort(rng.random(70_000)),
    "descending": np.sort(rng.random(70_000))[::-1],
    "periodic with the sample": np.tile(np.r_[1.0, np.zeros(q.SAMPLE - 1)], 500),
    "few": rng.random(100),
    "single": np.array([3.0]),
    "two": np.array([1.0, 2.0]),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_quantiles_are_numpys_to_the_last_bit_of_the_values(name: str) -> None:
    values = SAMPLES[name].astype(np.float32)
    np.testing.assert_allclose(q.exact_quantiles(values, SHARES), np.quantile(values.astype(np.float64), SHARES), rtol=1e-12)


def filled(*parts: Array) -> q.Distribution:
    """A distribution of some parts."""
    found = q.Distribution()
    for part in parts:
        histogram = np.zeros(q.BINS, np.int64)
        q.count(part, histogram)
        found.add(part, histogram)
    return found


def test_a_distribution_of_parts_is_exact_while_values_are_kept() -> None:
    values = SAMPLES["heavy tail"].astype(np.float32)
    whole = filled(*np.array_split(values, 7))
    assert whole.exact
    np.testing.assert_allclose(whole.quantiles(SHARES), np.quantile(values.astype(np.float64), SHARES), rtol=1e-12)


def test_beyond_what_is_kept_a_quantile_is_off_by_no_more_than_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(q.Distribution, "KEEP", 1000)
    monkeypatch.setattr(q, "STRIDE", 1)
    values = SAMPLES["heavy tail"].astype(np.float32)
    whole = filled(values[:100_000])
    whole.merge(filled(values[100_000:]))
    assert not whole.exact
    np.testing.assert_allclose(whole.quantiles(SHARES), np.quantile(values, SHARES), rtol=q.Distribution.RELATIVE_ERROR * 1.01)


def test_a_share_of_the_values_is_enough_for_a_histogram(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(q.Distribution, "KEEP", 1000)
    values = SAMPLES["heavy tail"].astype(np.float32)
    np.testing.assert_allclose(filled(values).quantiles(SHARES[:3]), np.quantile(values, SHARES[:3]), rtol=0.06)


def test_an_empty_distribution_has_no_quantiles() -> None:
    assert q.Distribution().quantiles(SHARES) == [None] * 4


def test_zeros_stay_zero_in_a_histogram(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(q.Distribution, "KEEP", 0)
    assert filled(np.zeros(100, np.float32)).quantiles([0.5, 0.999]) == [0.0, 0.0]
