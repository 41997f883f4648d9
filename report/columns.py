"""How the catalogue's metrics are shown to people: short headings, which go by step, and how far a value is from agreement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rlaudit.analyzers.results import MetricDefinition, StepMetrics


class MetricColumn(NamedTuple):
    """How one metric is shown.

    heading: at most two short lines. ideal: the value where both sides compute the same policy. share: printed as percent.
    """

    name: str
    heading: str
    ideal: float
    share: bool = False


SHOWN: dict[str, MetricColumn] = {
    column.name: column
    for column in (
        MetricColumn("pearson_prob", "Pearson\nof p", 1.0),
        MetricColumn("logp_diff_mean", "|Δ log p|\nmean", 0.0),
        MetricColumn("logp_diff_p99", "|Δ log p|\np99", 0.0),
        MetricColumn("logp_diff_max", "|Δ log p|\nmax", 0.0),
        MetricColumn("k3", "k3", 0.0),
        MetricColumn("ratio_gt2", "ratio\n> 2", 0.0, share=True),
        MetricColumn("k1", "k1", 0.0),
        MetricColumn("ratio_mean", "ratio\nmean", 1.0),
        MetricColumn("prob_diff_mean", "|Δp|\nmean", 0.0),
        MetricColumn("prob_diff_max", "|Δp|\nmax", 0.0),
        MetricColumn("pearson_logp", "Pearson\nof log p", 1.0),
        MetricColumn("prob_diff_std", "|Δp|\nstd", 0.0),
        MetricColumn("prob_diff_p50", "|Δp|\nmedian", 0.0),
        MetricColumn("prob_diff_p99", "|Δp|\np99", 0.0),
        MetricColumn("logp_diff_std", "|Δ log p|\nstd", 0.0),
        MetricColumn("logp_diff_p50", "|Δ log p|\nmedian", 0.0),
        MetricColumn("logp_diff_p90", "|Δ log p|\np90", 0.0),
        MetricColumn("logp_diff_p999", "|Δ log p|\np99.9", 0.0),
        MetricColumn("ess", "ESS", 1.0, share=True),
        MetricColumn("routing_disagreement", "(token, layer) pairs\nrouted differently", 0.0, share=True),
        MetricColumn("routing_overlap", "experts\nshared", 1.0, share=True),
        MetricColumn("routing_any_layer", "tokens with any layer\nrouted differently", 0.0, share=True),
    )
}
"""Every metric of the catalogue by name."""

STEP_COLUMNS: tuple[MetricColumn, ...] = tuple(SHOWN.values())[:11]
"""By step, in order of preference: a narrow page prints the first ones."""

WORST_STEP = "logp_diff_mean"
"""The metric that decides which steps of a long run are printed."""
WORST_STEP_IN_WORDS = "mean |Δ log p|"


def occurring(by_step: Sequence[StepMetrics]) -> list[MetricColumn]:
    """The step columns for which any step has a value."""
    return [column for column in STEP_COLUMNS if any(step.values.get(column.name) is not None for step in by_step)]


def label(name: str, definition: MetricDefinition | None) -> str:
    """A metric's heading on one line, with its unit."""
    shown = SHOWN[name].heading.replace("\n", " ") if name in SHOWN else name
    return f"{shown} ({definition.unit})" if definition is not None and definition.unit else shown


def unit_of(name: str, definition: MetricDefinition | None) -> str | None:
    """The unit to print a metric's values in: "share" for what is printed as percent."""
    if name in SHOWN and SHOWN[name].share:
        return "share"
    return definition.unit if definition is not None else None


def floor_ratio(name: str, value: float | None, floor: float | None) -> float | None:
    """How many times farther from agreement ``value`` is than ``floor``; both sides' distance from the ideal value.

    None where either is missing, where the metric has no ideal, and where the floor is exactly the ideal.
    """
    if name not in SHOWN or value is None or floor is None or floor == SHOWN[name].ideal:
        return None
    return abs(value - SHOWN[name].ideal) / abs(floor - SHOWN[name].ideal)


def by_name(definitions: Sequence[MetricDefinition]) -> dict[str, MetricDefinition]:
    """Definitions by name."""
    return {definition.name: definition for definition in definitions}
