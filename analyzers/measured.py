"""Everything that a pass over a run measures, before anybody judges it: what the rules and the report read."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from rlaudit.analyzers.capture_losses import Losses, read_losses
from rlaudit.analyzers.compiled import Kernels, kernels, vectorised
from rlaudit.analyzers.engine_calls import EngineCalls, read_engine_calls
from rlaudit.analyzers.framework import FRAMEWORK_NAMES, StepNumbers, framework_numbers
from rlaudit.analyzers.grouping import ENGINE, SAMPLING, SEMANTICS, Group, Steps, load, plan
from rlaudit.analyzers.identity import Identity, check_identity, measure_effects
from rlaudit.analyzers.pairing import Joined, engine_side, pair, recompute_side, rollout_side, trainer_side, update_side
from rlaudit.analyzers.parts import PartsCheck, check_parts
from rlaudit.analyzers.routing_pass import ROLLOUT_TRAINER, TRAINER_UPDATE, RoutingPass, measure_routing
from rlaudit.analyzers.statistics import TokenStats
from rlaudit.analyzers.token_pass import TokenPass, measure_spans, now
from rlaudit.analyzers.weight_syncs import WeightSyncs, read_weight_syncs
from rlaudit.run import Run

THREADS = 2
"""Threads that read and work out quantiles, beside the one that sums."""
AHEAD = 2
"""Groups that are read before they are needed."""
COMPILED_FROM_BYTES = 256 << 20
"""Routing tables of at least this size on disk are compared by compiled kernels; below, loading them would take longer than they save."""


@dataclass(slots=True)
class Measured:
    """One run, measured.

    main: rollout against trainer (its ``trainer`` score where there is one, otherwise the first ``update`` score). floor: trainer against
    first update. returned: what engine calls returned against the rollout log-probabilities that the trainer
    recorded. routing: (``main`` or ``floor``, lag class) to its comparison. semantics, sampling: distinct rows of
    ``grouping.SEMANTICS`` and ``SAMPLING`` with their counts. tokens: response tokens of train sequences; sampled: those that the
    policy sampled.
    """

    run: Run
    step_numbers: set[int] = field(default_factory=set)
    tokens: int = 0
    sampled: int = 0
    not_train: int = 0
    joined: Joined = field(default_factory=Joined)
    main: TokenPass = field(default_factory=TokenPass)
    floor: TokenPass = field(default_factory=TokenPass)
    returned: TokenPass = field(default_factory=TokenPass)
    routing: dict[tuple[str, str], RoutingPass] = field(default_factory=dict)
    identity: Identity = field(default_factory=Identity)
    semantics: dict[tuple[Any, ...], int] = field(default_factory=dict)
    sampling: dict[tuple[Any, ...], int] = field(default_factory=dict)
    framework: dict[int, StepNumbers] = field(default_factory=dict)
    losses: Losses = field(default_factory=Losses)
    parts: PartsCheck = field(default_factory=PartsCheck)
    weights: WeightSyncs = field(default_factory=WeightSyncs)
    calls: EngineCalls = field(default_factory=EngineCalls)
    scores_in_parts: int = 0
    duplicate_sequences: int = 0
    orphan_scores: int = 0

    @property
    def basis(self) -> str:
        """The lag class that verdicts rest on: ``equal`` where any token was compared at equal policy version, otherwise ``unknown``."""
        return "equal" if self.main.lag_class("equal").tokens else "unknown"

    def at_basis(self) -> TokenStats:
        """Statistics of the tokens that verdicts rest on."""
        return self.main.lag_class(self.basis)

    def all_tokens(self) -> TokenStats:
        """Statistics and counts of all compared tokens, whatever their policy versions."""
        return self.main.lag_class("equal", "unknown", "other")

    def floor_stats(self) -> TokenStats:
        """Statistics of the noise floor: the trainer's two evaluations at equal policy version."""
        return self.floor.lag_class("equal")

    def routing_at(self, comparison: str = "main") -> RoutingPass:
        """The routing comparison at the basis (the floor's: at equal policy version)."""
        return self.routing.get((comparison, self.basis if comparison == "main" else "equal"), RoutingPass())

    def values(self, column: str, source: str) -> list[Any]:
        """Distinct known values of a semantics column among the scores of a source, most frequent first."""
        return _distinct(self.semantics, SEMANTICS, column, lambda row: row[0] == source)

    def has_source(self, source: str) -> bool:
        """True where the run holds scores of that source."""
        return any(row[0] == source for row in self.semantics)

    def sampling_values(self, column: str) -> list[Any]:
        """Distinct known values of a sampling column, most frequent first."""
        return _distinct(self.sampling, SAMPLING, column, lambda _: True)


def _distinct(counted: dict[tuple[Any, ...], int], columns: tuple[str, ...], column: str, wanted: Any) -> list[Any]:
    place = columns.index(column)
    totals: dict[Any, int] = {}
    for row, count in counted.items():
        if wanted(row) and row[place] is not None:
            totals[row[place]] = totals.get(row[place], 0) + count
    return sorted(totals, key=lambda value: -totals[value])


def needs_kernels(run: Run) -> bool:
    """True where measuring ``run`` uses compiled kernels (``compiled.kernels_cached`` says whether they must be compiled first)."""
    return run.bytes("routing") >= COMPILED_FROM_BYTES


def measure(run: Run) -> Measured:
    """Read every table of ``run`` once and measure it. Memory is bounded: a few groups of ``grouping.GROUP_BYTES`` at a time."""
    tools = kernels() if needs_kernels(run) else vectorised()
    checked = {name for name in run.read("framework_metrics", ["name"])["name"].unique().to_pylist() if name in FRAMEWORK_NAMES}
    total = Measured(run, losses=read_losses(run), weights=read_weight_syncs(run), calls=read_engine_calls(run))
    _measure_groups(total, plan(run), tools, with_framework=bool(checked))
    measure_effects(run, total.identity)
    if total.scores_in_parts or any(routing.in_parts for routing in total.routing.values()):
        total.parts = check_parts(run)
    return total


def _measure_groups(total: Measured, groups: list[Steps], tools: Kernels, *, with_framework: bool) -> None:
    run = total.run
    if len(groups) <= 1:
        for steps in groups:
            _add(total, _measure_group(run, tools, steps, load(run, steps, loss_mask=with_framework), now))
        return
    # Sums run on this thread. Reading and quantiles, which hold the interpreter for moments only, run beside it: block-wise sums on
    # several threads would mostly wait for each other.
    with ThreadPoolExecutor(THREADS) as pool:
        loading = deque((steps, pool.submit(load, run, steps, loss_mask=with_framework)) for steps in groups[:AHEAD])
        measured: deque[Measured] = deque()
        for place in range(len(groups)):
            steps, future = loading.popleft()
            group = future.result()
            if place + AHEAD < len(groups):
                following = groups[place + AHEAD]
                loading.append((following, pool.submit(load, run, following, loss_mask=with_framework)))
            measured.append(_measure_group(run, tools, steps, group, lambda work: pool.submit(work).result))
            if len(measured) > 1:
                _add(total, measured.popleft())
        for part in measured:
            _add(total, part)


def _measure_group(run: Run, tools: Kernels, steps: Steps, group: Group, later: Any) -> Measured:
    found = Measured(run)
    _describe(group, found)
    main = pair(group, rollout_side(group), trainer_side(group), found.joined)
    floor = pair(group, recompute_side(group), update_side(group))
    found.main, found.floor = measure_spans(group, main, later), measure_spans(group, floor, later)
    if (group.source == ENGINE).any():
        found.returned = measure_spans(group, pair(group, engine_side(group), rollout_side(group)), later)
    found.routing = measure_routing(run, tools, group, steps, {"main": (ROLLOUT_TRAINER, main), "floor": (TRAINER_UPDATE, floor)})
    found.framework = framework_numbers(group)
    found.identity = check_identity(run, steps)
    return found


def _describe(group: Group, found: Measured) -> None:
    train = group.train
    found.step_numbers = set(group.step[train].tolist())
    found.tokens = int(group.response[train].clip(0).sum())
    found.sampled = int(group.sampled_tokens[train].sum())
    found.not_train = int((~train).sum())
    found.duplicate_sequences, found.orphan_scores = group.duplicate_sequences, group.orphan_scores
    found.scores_in_parts = int((group.parts > 1).sum())
    found.semantics, found.sampling = _counted(group.semantics), _counted(group.sampling)


def _counted(table: pa.Table) -> dict[tuple[Any, ...], int]:
    rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
    return {row[:-1]: row[-1] for row in rows}


def _add(total: Measured, part: Measured) -> None:
    part.main.settle()
    part.floor.settle()
    part.returned.settle()
    total.step_numbers |= part.step_numbers
    for name in ("tokens", "sampled", "not_train", "scores_in_parts", "duplicate_sequences", "orphan_scores"):
        setattr(total, name, getattr(total, name) + getattr(part, name))
    for name in ("joined", "main", "floor", "returned", "identity"):
        getattr(total, name).add(getattr(part, name))
    for key, routing in part.routing.items():
        total.routing.setdefault(key, RoutingPass()).add(routing)
    for mine, theirs in ((total.semantics, part.semantics), (total.sampling, part.sampling)):
        for row, count in theirs.items():
            mine[row] = mine.get(row, 0) + count
    total.framework.update(part.framework)
