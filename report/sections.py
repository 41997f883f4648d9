"""The parts of a report as tables of text, the same for terminal and Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rlaudit.analyzers.results import FrameworkCheck, LayerRouting, NoiseFloor, Report, StepMetrics, StepRouting
from rlaudit.report import columns
from rlaudit.report.grid import Grid, with_gaps
from rlaudit.report.steps import shorten
from rlaudit.report.text import MISSING, number, of_total, percent, times

PER_STEP_DIGITS = 2
"""Significant digits where many numbers stand side by side."""


def coverage(report: Report) -> list[tuple[str, str]]:
    """What could be joined, both ways, in words."""
    counts = report.coverage
    pairs = [
        ("Trainer rows", of_total(counts.joined, counts.joined + counts.without_rollout, "joined to a rollout")),
        ("Rollouts", of_total(counts.joined, counts.joined + counts.without_trainer, "joined to a trainer row")),
        ("Tokens", of_total(counts.compared_tokens, counts.sampled_tokens, "sampled tokens compared")),
        ("In all", f"{counts.tokens:,} response tokens of {counts.sequences:,} sequences in {counts.steps:,} steps"),
    ]
    if counts.routed_sequences:
        pairs.append(("Routing", of_total(counts.routing_joined, counts.routed_sequences, "routed sequences joined")))
    if counts.not_consumed:
        pairs.append(("Not consumed", f"{counts.not_consumed:,} rollouts that no trainer forward used (evaluation, filtered)"))
    if counts.dropped_rows:
        pairs.append(("Dropped", f"{counts.dropped_rows:,} rows that capture could not keep up with; what they held is missing above"))
    return pairs


def grids(report: Report) -> list[Grid]:
    """The tables that have rows, in printing order."""
    found = (
        overall(report),
        by_step(report),
        worst_sequences(report),
        routing_by_layer(report),
        routing_effect(report),
        routing_by_step(report),
        framework_checks(report),
    )
    return [grid for grid in found if grid is not None]


def overall(report: Report) -> Grid | None:
    """Every metric over all compared tokens, beside the noise floor, as a multiple of it, and under frameworks' names."""
    if not report.overall:
        return None
    definitions = columns.by_name(report.definitions)
    floor = report.noise_floor.values if report.noise_floor else {}
    ratios = {name: columns.floor_ratio(name, value, floor.get(name)) for name, value in report.overall.items()}
    with_ratio = any(ratio is not None for ratio in ratios.values())
    rows = []
    for name, value in report.overall.items():
        definition = definitions.get(name)
        unit, ratio = columns.unit_of(name, definition), ratios[name]
        beside = (number(floor.get(name), unit),) if floor else ()
        multiple = (times(ratio) if ratio is not None else MISSING,) if with_ratio else ()
        aliases = ", ".join(f"{who}: {alias}" for who, alias in definition.aliases.items()) if definition else ""
        rows.append((columns.label(name, definition), number(value, unit), *beside, *multiple, aliases))
    beside_headings = [heading for heading, given in (("noise floor", bool(floor)), ("times floor", with_ratio)) if given]
    headings = ("metric", "all steps", *beside_headings, "called by frameworks")
    last = len(headings) - 1
    right = tuple(0 < index < last for index in range(len(headings)))
    return Grid("Agreement of rollout and trainer", headings, right, tuple(rows), (_floor_note(report.noise_floor, with_ratio),), (last,))


def _floor_note(floor: NoiseFloor | None, with_ratio: bool) -> str:
    if floor is None:
        return "No noise floor: the run holds no second evaluation of the same tokens at the same weights."
    what = f"Noise floor: {floor.how}, {floor.tokens:,} tokens."
    if not with_ratio:
        return f"{what} By these metrics the two evaluations are the same, so there is no multiple to give."
    return f"{what} Times floor: distance from agreement, in floors."


def by_step(report: Report) -> Grid | None:
    """The most telling metrics of every step, or of the first, last and worst ones."""
    if not report.by_step:
        return None
    chosen = shorten(report.by_step, lambda step: step.values.get(columns.WORST_STEP), "steps", columns.WORST_STEP_IN_WORDS)
    shown = columns.occurring(report.by_step)
    definitions = columns.by_name(report.definitions)
    units = {column.name: columns.unit_of(column.name, definitions.get(column.name)) for column in shown}
    lags = {step.lag for step in report.by_step}
    notes = [chosen.note] if chosen.note else []
    if len(lags) == 1:
        notes.append(_one_lag(lags.pop()))
    with_lag = len({step.lag for step in report.by_step}) > 1
    with_attempt = len({step.attempt for step in report.by_step}) > 1

    def cells(step: StepMetrics) -> tuple[str, ...]:
        attempt = (str(step.attempt),) if with_attempt else ()
        lag = (number(step.lag),) if with_lag else ()
        values = (number(step.values.get(c.name), units.get(c.name), digits=PER_STEP_DIGITS, aligned=True) for c in shown)
        return (*attempt, str(step.step), *lag, number(step.tokens), *values)

    headings = (
        *(("attempt",) if with_attempt else ()),
        "step",
        *(("lag",) if with_lag else ()),
        "tokens",
        *(column.heading for column in shown),
    )
    keep = len(headings) - len(shown) + 1
    optional = tuple(range(len(headings) - 1, keep - 1, -1))
    rows = with_gaps([cells(report.by_step[i]) for i in chosen.positions], chosen.positions)
    return Grid("By training step", headings, (True,) * len(headings), rows, tuple(notes), optional)


def _one_lag(lag: int | None) -> str:
    if lag is None:
        return "Lag is unknown: the policy versions of rollout and trainer could not be mapped to optimizer steps."
    return f"Lag {lag} in every step ({'same weights on both sides' if lag == 0 else 'optimizer steps between rollout and trainer'})."


def worst_sequences(report: Report) -> Grid | None:
    """The sequences on which rollout and trainer differ most."""
    if not report.worst_sequences:
        return None
    rows = tuple(
        (str(w.step), w.sequence_id, number(w.tokens), number(w.logp_diff_mean, "nats"), number(w.logp_diff_max, "nats"), str(w.position))
        for w in report.worst_sequences
    )
    headings = ("step", "sequence", "tokens", "|Δ log p|\nmean", "|Δ log p|\nmax", "at response\nposition")
    return Grid("Sequences that differ most", headings, (True, False, True, True, True, True), rows)


def routing_effect(report: Report) -> Grid | None:
    """Mean |Δ log p| of tokens with and without a routing difference."""
    effect = report.routing_effect
    if effect is None:
        return None
    share = effect.share_of_logp_diff
    rows = (
        ("routed the same", number(effect.tokens_same), number(effect.logp_diff_same, "nats"), percent(1 - share, aligned=True)),
        (
            "routed differently in any layer",
            number(effect.tokens_differ),
            number(effect.logp_diff_differ, "nats"),
            percent(share, aligned=True),
        ),
    )
    headings = ("response tokens", "tokens", "|Δ log p|\nmean", "share of\nΣ |Δ log p|")
    return Grid("Routing and log-probabilities", headings, (False, True, True, True), rows, ("An association, not a cause.",))


def routing_by_layer(report: Report) -> Grid | None:
    """Routing disagreement of every layer, or of the first, last and worst ones."""
    layers = report.routing_by_layer
    if not layers:
        return None
    if not any(layer.disagreement for layer in layers):
        pairs = sum(layer.tokens for layer in layers)
        same = f"The same sets of experts in all {pairs:,} (token, layer) pairs of {len(layers):,} layers that both sides routed."
        return Grid("Routed experts", (), (), (), (same,))
    chosen = shorten(layers, lambda layer: layer.disagreement, "layers", "disagreement")

    def cells(layer: LayerRouting) -> tuple[str, ...]:
        return (str(layer.layer), number(layer.tokens), percent(layer.disagreement, aligned=True), percent(layer.overlap, aligned=True))

    headings = ("layer", "tokens", "tokens with\nanother set", "experts\nshared")
    rows = with_gaps([cells(layers[i]) for i in chosen.positions], chosen.positions)
    return Grid("Routed experts by layer", headings, (True,) * 4, rows, (chosen.note,) if chosen.note else ())


def routing_by_step(report: Report) -> Grid | None:
    """Routing disagreement of every step, or of the first, last and worst ones; None where no step has any."""
    steps = report.routing_by_step
    if not any(step.disagreement for step in steps):
        return None
    chosen = shorten(steps, lambda step: step.disagreement, "steps", "disagreement")
    with_attempt = len({step.attempt for step in steps}) > 1

    def cells(step: StepRouting) -> tuple[str, ...]:
        attempt = (str(step.attempt),) if with_attempt else ()
        shares = (percent(step.disagreement, aligned=True), percent(step.any_layer, aligned=True))
        return (*attempt, str(step.step), number(step.tokens), *shares)

    headings = (
        *(("attempt",) if with_attempt else ()),
        "step",
        "tokens",
        "(token, layer) pairs\nwith another set",
        "tokens with another\nset in any layer",
    )
    rows = with_gaps([cells(steps[i]) for i in chosen.positions], chosen.positions)
    return Grid("Routed experts by training step", headings, (True,) * len(headings), rows, (chosen.note,) if chosen.note else ())


def framework_checks(report: Report) -> Grid | None:
    """One row for each number that a framework logged: in how many steps it equals ours, and a step where it doesn't."""
    if not report.framework_checks:
        return None
    groups: dict[tuple[str, str], list[FrameworkCheck]] = {}
    for check in report.framework_checks:
        groups.setdefault((check.framework, check.name), []).append(check)
    rows = [_checks_row(framework, name, checks) for (framework, name), checks in groups.items()]
    headings = ("logged number", "equal", "differs", "not\ncompared", "first difference")
    return Grid("Numbers that the framework logged, against ours (in steps)", headings, (False, True, True, True, False), tuple(rows))


def _checks_row(framework: str, name: str, checks: Sequence[FrameworkCheck]) -> tuple[str, ...]:
    count: Callable[[bool | None], int] = lambda state: sum(check.agrees is state for check in checks)  # noqa: E731
    odd = next((check for check in checks if check.agrees is False), None)
    first = f"step {odd.step}: {number(odd.logged, digits=5)}, ours {number(odd.ours, digits=5)}" if odd else MISSING
    return (f"{framework}: {name}", number(count(True)), number(count(False)), number(count(None)), first)
