"""Which metrics a report for people prints by step, under which short heading, and how far each is from agreement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rlaudit.analyzers.results import MetricDefinition, StepMetrics


class MetricColumn(NamedTuple):
    """A metric's column. heading: at most two short lines. ideal: the value where both sides compute the same policy."""

    name: str
    heading: str
    ideal: float


STEP_COLUMNS: tuple[MetricColumn, ...] = (
    MetricColumn("pearson_prob", "Pearson\nof p", 1.0),
    MetricColumn("logp_diff_mean", "|Δ log p|\nmean", 0.0),
    MetricColumn("logp_diff_p99", "|Δ log p|\np99", 0.0),
    MetricColumn("logp_diff_max", "|Δ log p|\nmax", 0.0),
    MetricColumn("k3", "k3", 0.0),
    MetricColumn("ratio_gt2", "ratio\n> 2", 0.0),
    MetricColumn("k1", "k1", 0.0),
    MetricColumn("ratio_mean", "ratio\nmean", 1.0),
    MetricColumn("prob_diff_mean", "|Δp|\nmean", 0.0),
    MetricColumn("prob_diff_max", "|Δp|\nmax", 0.0),
    MetricColumn("pearson_logp", "Pearson\nof log p", 1.0),
)
"""In order of preference: a narrow page prints the first ones."""

WORST_STEP = "logp_diff_mean"
"""The metric that decides which steps of a long run are printed."""
WORST_STEP_IN_WORDS = "mean |Δ log p|"


def occurring(by_step: Sequence[StepMetrics]) -> list[MetricColumn]:
    """The step columns for which any step has a value."""
    return [column for column in STEP_COLUMNS if any(step.values.get(column.name) is not None for step in by_step)]


def floor_ratio(name: str, value: float | None, floor: float | None) -> float | None:
    """How many times farther from agreement ``value`` is than ``floor``; both sides' distance from the ideal value.

    None where either is missing, where the metric has no ideal, and where the floor is exactly the ideal.
    """
    ideal = next((column.ideal for column in STEP_COLUMNS if column.name == name), None)
    if ideal is None or value is None or floor is None or floor == ideal:
        return None
    return abs(value - ideal) / abs(floor - ideal)


def titles(definitions: Sequence[MetricDefinition]) -> dict[str, MetricDefinition]:
    """Definitions by name."""
    return {definition.name: definition for definition in definitions}
