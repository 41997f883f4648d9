"""Numbers that a framework logged itself, recomputed over the tokens that it used, and compared.

TRL (``trl/trainer/grpo_trainer.py``) logs the mean and the maximum of |old - sampling| over completion-mask tokens (tool tokens
excluded, NaN
left out) of each generation batch, averaged over the batches since the last log.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from rlaudit.analyzers.grouping import Group
from rlaudit.analyzers.pairing import pair, recompute_side, rollout_side
from rlaudit.analyzers.results import FrameworkCheck
from rlaudit.analyzers.statistics import TokenStats
from rlaudit.analyzers.thresholds import FRAMEWORK_ABSOLUTE_TOLERANCE, FRAMEWORK_RELATIVE_TOLERANCE
from rlaudit.analyzers.token_pass import measure_spans
from rlaudit.lists import flags
from rlaudit.run import Run

FRAMEWORK_NAMES = {
    "sampling/sampling_logp_difference/mean": "logp_diff_mean",
    "sampling/sampling_logp_difference/max": "logp_diff_max",
}
"""Framework metric to the catalogue metric with the same definition."""


class StepNumbers(NamedTuple):
    """Our metrics over the tokens that the framework averages in one step, by catalogue name. ranks: processes that held its sequences."""

    values: dict[str, float | None]
    ranks: int


def framework_numbers(group: Group) -> dict[int, StepNumbers]:
    """Per step, |trainer - rollout| over the tokens of the loss mask (all where it is null), with source ``trainer`` only."""
    if group.in_loss is None:
        return {}
    masked = group._replace(sampled=group.in_loss, tokens=group.tokens._replace(sampled=flags(group.in_loss)))
    found = measure_spans(masked, pair(masked, rollout_side(masked), recompute_side(masked)))
    found.settle()
    by_step: dict[int, TokenStats] = {}
    for key, (stats, _) in found.by_key.items():
        by_step.setdefault(key.step, TokenStats()).add(stats)
    return {step: StepNumbers(stats.metrics(), len(set(group.ranks[group.step == step].tolist()))) for step, stats in by_step.items()}


def framework_checks(run: Run, ours: dict[int, StepNumbers]) -> tuple[FrameworkCheck, ...]:
    """Each logged number of FRAMEWORK_NAMES beside ours. agrees is None where ours is missing or several processes averaged their
    own means."""
    rows = run.read("framework_metrics", ["attempt", "step", "framework", "name", "value"])
    wanted = [row for row in rows.to_pylist() if row["name"] in FRAMEWORK_NAMES and row["step"] is not None]
    checks = []
    for name, metric in FRAMEWORK_NAMES.items():
        previous = -math.inf
        for row in sorted((row for row in wanted if row["name"] == name), key=lambda row: (row["attempt"] or 0, row["step"])):
            window = [numbers for step, numbers in sorted(ours.items()) if previous < step <= row["step"]]
            previous = row["step"]
            values = [value for numbers in window if (value := numbers.values.get(metric)) is not None]
            mine = float(np.mean(values)) if values else None
            comparable = mine is not None and row["value"] is not None and all(numbers.ranks == 1 for numbers in window)
            agrees = (
                math.isclose(mine, row["value"], rel_tol=FRAMEWORK_RELATIVE_TOLERANCE, abs_tol=FRAMEWORK_ABSOLUTE_TOLERANCE)
                if comparable and mine is not None
                else None
            )
            checks.append(FrameworkCheck(row["step"], row["framework"], name, row["value"], mine, agrees))
    return tuple(sorted(checks, key=lambda check: (check.step, check.name)))
