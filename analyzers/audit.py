"""From a run to its report: measure, judge, and say how each number can be had by SQL."""

from __future__ import annotations

import rlaudit
from rlaudit.analyzers import routing_kernel as rk
from rlaudit.analyzers.catalogue import CATALOGUE
from rlaudit.analyzers.facts import describe
from rlaudit.analyzers.framework import framework_checks
from rlaudit.analyzers.measured import Measured, measure
from rlaudit.analyzers.queries import report_queries
from rlaudit.analyzers.results import Coverage, LayerRouting, NoiseFloor, Report, RoutingEffect, StepMetrics, StepRouting, WorstSequence
from rlaudit.analyzers.routing_pass import RoutingPass
from rlaudit.analyzers.rules import find
from rlaudit.analyzers.rules.precision import EXPLAINS, above_the_line
from rlaudit.analyzers.rules.routing_noise import conditional_means
from rlaudit.findings import Finding, judge
from rlaudit.run import Run

Values = dict[str, float | None]


def build_report(run: Run) -> Report:
    """Audit a run. Reads every table once; memory is bounded whatever the run's size.

    Raises DamagedRun where a segment can't be read. A run in which nothing can be compared gives a report that says so.
    """
    measured = measure(run)
    findings = find(measured)
    stats = measured.at_basis()
    overall = {**stats.metrics(measured.main.quantiles(measured.basis)), **_routing_values(measured.routing_at())}
    withheld = tuple(_withheld(measured, findings))
    by_step = _by_step(measured)
    floor = _noise_floor(measured)
    names = {name for values in (overall, *(step.values for step in by_step), floor.values if floor else {}) for name in values}
    return Report(
        run=run.path,
        verdict=judge(findings, compared_tokens=stats.tokens, basis=_basis(measured, overall), withheld=withheld),
        findings=findings,
        coverage=_coverage(measured),
        facts=describe(measured),
        overall=_in_catalogue_order(overall),
        by_step=by_step,
        routing_by_layer=_routing_by_layer(measured.routing_at()),
        routing_by_step=_routing_by_step(measured.routing_at()),
        noise_floor=floor,
        framework_checks=framework_checks(run, measured.framework),
        definitions=tuple(d for name, d in CATALOGUE.items() if name in names),
        queries=report_queries(measured),
        withheld=withheld,
        rlaudit_version=rlaudit.__version__,
        routing_effect=_routing_effect(measured.routing_at()),
        worst_sequences=_worst(measured),
    )


def _in_catalogue_order(values: Values) -> Values:
    return {name: values[name] for name in CATALOGUE if name in values}


def _basis(measured: Measured, overall: Values) -> str:
    level, largest = overall.get("logp_diff_mean"), overall.get("logp_diff_max")
    tokens = measured.at_basis().tokens
    numbers = f", mean |Δ log p| {level:.2g}, largest {largest:.2g}" if level is not None and largest is not None else ""
    return f"{tokens:,} tokens of {len(measured.step_numbers)} step(s) compared{numbers}"


def _coverage(measured: Measured) -> Coverage:
    joined, routing = measured.joined, measured.routing_at()
    return Coverage(
        steps=len(measured.step_numbers),
        sequences=joined.sequences,
        joined=joined.joined,
        without_rollout=joined.without_rollout,
        without_trainer=joined.without_trainer,
        not_consumed=measured.not_train,
        tokens=measured.tokens,
        sampled_tokens=measured.sampled,
        compared_tokens=measured.main.lag_class("equal").tokens,
        dropped_rows=measured.losses.rows,
        routed_sequences=measured.routing["main", "equal"].sequences if measured.routing else 0,
        routing_joined=routing.joined,
    )


def _by_step(measured: Measured) -> tuple[StepMetrics, ...]:
    rows = sorted(measured.main.by_key.items(), key=lambda item: (item[0].attempt, item[0].step, item[0].lag is None, item[0].lag or 0))
    return tuple(
        StepMetrics(key.step, key.lag, stats.tokens, _in_catalogue_order(stats.metrics(quantiles)), key.attempt)
        for key, (stats, quantiles) in rows
        if stats.tokens
    )


def _routing_values(routing: RoutingPass) -> Values:
    counts = routing.total()
    if not counts[rk.ROWS]:
        return {}
    tokens, differing = routing.total_tokens()
    return {
        "routing_disagreement": float(counts[rk.DIFFERING] / counts[rk.ROWS]),
        "routing_overlap": _overlap(routing),
        "routing_any_layer": differing / tokens if tokens else None,
    }


def _overlap(routing: RoutingPass) -> float | None:
    chosen = routing.total()[rk.EXPERTS]
    return float(routing.total()[rk.SHARED_EXPERTS] / chosen) if chosen else None


def _routing_by_layer(routing: RoutingPass) -> tuple[LayerRouting, ...]:
    return tuple(
        LayerRouting(layer, int(row[rk.ROWS]), float(row[rk.DIFFERING] / row[rk.ROWS]), float(row[rk.SHARED_EXPERTS] / row[rk.EXPERTS]))
        for layer, row in routing.by_layer().items()
        if row[rk.ROWS]
    )


def _routing_by_step(routing: RoutingPass) -> tuple[StepRouting, ...]:
    pairs: dict[tuple[int, int], tuple[int, int]] = {}
    for (attempt, step, _), row in routing.layers.items():
        rows, differing = pairs.get((attempt, step), (0, 0))
        pairs[attempt, step] = rows + int(row[rk.ROWS]), differing + int(row[rk.DIFFERING])
    return tuple(
        StepRouting(
            step,
            int(routing.tokens[attempt, step][0]),
            differing / rows,
            float(routing.tokens[attempt, step][1] / routing.tokens[attempt, step][0]),
            attempt,
        )
        for (attempt, step), (rows, differing) in sorted(pairs.items())
        if rows and routing.tokens[attempt, step][0]
    )


def _routing_effect(routing: RoutingPass) -> RoutingEffect | None:
    means = conditional_means(routing)
    if means is None:
        return None
    return RoutingEffect(int(routing.effect[0, 0]), int(routing.effect[1, 0]), *means)


def _noise_floor(measured: Measured) -> NoiseFloor | None:
    stats = measured.floor_stats()
    if not stats.tokens:
        return None
    values = {**stats.metrics(measured.floor.quantiles("equal")), **_routing_values(measured.routing_at("floor"))}
    how = (
        "the trainer evaluated the same tokens twice at the same weights: before the update (source trainer) "
        "and in its first training forward (source update)"
    )
    return NoiseFloor(how, stats.tokens, _in_catalogue_order(values))


def _worst(measured: Measured) -> tuple[WorstSequence, ...]:
    return tuple(WorstSequence(w.step, w.sequence_id, w.tokens, w.mean, w.position, w.largest) for w in measured.main.worst)


def _withheld(measured: Measured, findings: tuple[Finding, ...]) -> list[str]:
    """What could not be said, each with its reason."""
    reasons = []
    stats, joined, routing = measured.at_basis(), measured.joined, measured.routing_at()
    if not joined.sequences:
        reasons.append("No training sequence was recorded.")
    elif not joined.joined:
        reasons.append(f"None of {joined.sequences:,} training sequences has both rollout and trainer log-probabilities.")
    if measured.basis == "unknown" and stats.tokens:
        reasons.append(
            "Policy versions are unknown on at least one side: a difference may contain staleness (record policy_updates on both)."
        )
    if stats.tokens and not measured.floor_stats().tokens:
        reasons.append("No noise floor: no token was evaluated twice by the trainer at the same weights (sources trainer and update).")
    explained = [finding.code for finding in findings if finding.code in EXPLAINS and finding.severity != "info"]
    if explained and above_the_line(stats.metrics()):
        reasons.append(f"Numerics are not judged: {', '.join(dict.fromkeys(explained))} must be resolved first.")
    if stats.tokens and stats.metrics().get("ratio_mean") is None:
        reasons.append("The mean importance ratio overflows: some Δ log p is above 700 nats.")
    if not measured.main.exact(measured.basis):
        reasons.append("Percentiles over the whole run are from a histogram of every eighth token (bins of 0.2 %), per step exact.")
    if routing.different_shape:
        reasons.append(
            f"{routing.different_shape:,} pairs of routing rows have different top_k or numbers of experts and were not compared."
        )
    if routing.without_sequence:
        reasons.append(f"{routing.without_sequence:,} routing rows name no recorded sequence and were not compared.")
    if not measured.identity.links:
        reasons.append("Token identity was not checked: no engine call is linked to a sequence.")
    return reasons
