"""Result types of the analyzers: plain frozen data that ``rlaudit.report`` renders and never recomputes.

Every number is a Python float or int, or None where it could not be computed (``withheld`` says why);
NaN never stands for "unknown".
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rlaudit.findings import Finding, Verdict

SCHEMA_VERSION = 1
"""Version of the JSON report. Fields are added within a version, never renamed or removed."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """What the run holds and what could be joined. Counts of sequences unless the name says otherwise.

    joined: sequences with both a rollout and a trainer score. without_rollout, without_trainer: the two misses.
    not_consumed: rollouts that no trainer forward used (evaluation, filtered), a state and not a miss.
    tokens: response tokens; sampled_tokens: those that the policy sampled; compared_tokens: those with both
    log-probabilities finite and at the same policy version.
    """

    steps: int
    sequences: int
    joined: int
    without_rollout: int
    without_trainer: int
    not_consumed: int
    tokens: int
    sampled_tokens: int
    compared_tokens: int
    dropped_rows: int
    routed_sequences: int = 0
    routing_joined: int = 0


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """Metrics of one training step, by catalogue name. ``lag``: optimizer steps between the two policies (None: unknown)."""

    step: int
    lag: int | None
    tokens: int
    values: dict[str, float | None]
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class LayerRouting:
    """Routing disagreement of one layer over the compared tokens of the run (shares in 0..1)."""

    layer: int
    tokens: int
    disagreement: float
    overlap: float


@dataclass(frozen=True, slots=True)
class StepRouting:
    """Routing disagreement of one step: share of (token, layer) pairs and of tokens with any layer differing."""

    step: int
    tokens: int
    disagreement: float
    any_layer: float
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class RoutingEffect:
    """What routing differences go with: response tokens by whether the forward that scored them routed differently in any layer.

    tokens_same, tokens_differ: how many of each; logp_diff_same, logp_diff_differ: their mean |Δ log p| (nats);
    share_of_logp_diff: share of Σ|Δ log p| on the tokens that differ. An association, not a cause.
    """

    tokens_same: int
    tokens_differ: int
    logp_diff_same: float
    logp_diff_differ: float
    share_of_logp_diff: float


@dataclass(frozen=True, slots=True)
class WorstSequence:
    """A compared sequence with a large mean |Δ log p| (nats). position: response position of its largest |Δ log p|."""

    step: int
    sequence_id: str
    tokens: int
    logp_diff_mean: float
    position: int
    logp_diff_max: float


@dataclass(frozen=True, slots=True)
class NoiseFloor:
    """The same weights and tokens evaluated twice by the trainer: what can't be blamed on the rollout engine.

    how: which two evaluations; tokens: how many; values: the same metrics as the comparison, by catalogue name.
    """

    how: str
    tokens: int
    values: dict[str, float | None]


@dataclass(frozen=True, slots=True)
class MetricDefinition:
    """One entry of the catalogue. aliases: framework name of the same number, by framework."""

    name: str
    title: str
    formula: str
    unit: str | None
    aggregation: str
    source: str
    aliases: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FrameworkCheck:
    """A number that the framework logged beside rlaudit's own. agrees is None where they can't be compared."""

    step: int
    framework: str
    name: str
    logged: float | None
    ours: float | None
    agrees: bool | None


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that ``rlaudit report`` prints.

    facts: what the run is (run id, command, framework, versions, dtypes), label to text, in printing order.
    overall: metrics over all compared tokens at equal policy version. queries: title to SQL that recomputes the numbers.
    withheld: what could not be said, each with its reason. definitions: catalogue entries of the metrics that occur.
    """

    run: str
    verdict: Verdict
    findings: tuple[Finding, ...]
    coverage: Coverage
    facts: dict[str, str]
    overall: dict[str, float | None]
    by_step: tuple[StepMetrics, ...]
    routing_by_layer: tuple[LayerRouting, ...]
    routing_by_step: tuple[StepRouting, ...]
    noise_floor: NoiseFloor | None
    framework_checks: tuple[FrameworkCheck, ...]
    definitions: tuple[MetricDefinition, ...]
    queries: dict[str, str]
    withheld: tuple[str, ...] = ()
    rlaudit_version: str = ""
    schema_version: int = SCHEMA_VERSION
    routing_effect: RoutingEffect | None = None
    worst_sequences: tuple[WorstSequence, ...] = ()


@dataclass(frozen=True, slots=True)
class CapturedProcess:
    """One process that capture saw.

    hooks: adapters that attached. rows: rows written, by table. dropped: rows lost, by table and reason. Seconds of CPU:
    in hooks (wall time on the hooked threads), in the writer thread, and of the whole process; None where it left no balance.
    ended: it closed its recorder; False for one that was killed.
    """

    process: str
    rank: int | None
    program: str
    executable: str
    hooks: tuple[str, ...]
    rows: dict[str, int]
    dropped: dict[str, dict[str, int]]
    fired: dict[str, int]
    failures: dict[str, tuple[int, str]]
    hook_seconds: float | None
    writer_seconds: float | None
    process_seconds: float | None

    @property
    def emitting(self) -> bool:
        """It wrote rows."""
        return any(self.rows.values())


@dataclass(frozen=True, slots=True)
class CapturedHook:
    """One adapter over all processes: attached or refused (then ``reason``), calls observed, failures inside our own code."""

    adapter: str
    distribution: str
    version: str | None
    state: str
    processes: int
    fired: int
    failures: int
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class RankGroup:
    """The ranks of one distributed job in one attempt.

    job: torchrun's run id or the rendezvous address. expected: number of ranks, 0 to expected - 1. seen: ranks of processes that
    capture saw; emitting: of those that wrote rows (duplicates of tensor parallelism need not). hosts: names of the hosts seen;
    expected_hosts: how many there should be, None where the ranks don't say.
    """

    attempt: int
    job: str
    expected: int
    seen: tuple[int, ...]
    emitting: tuple[int, ...]
    expected_hosts: int | None
    hosts: tuple[str, ...]

    @property
    def missing(self) -> tuple[int, ...]:
        """Ranks that capture never saw."""
        return tuple(rank for rank in range(self.expected) if rank not in set(self.seen))


@dataclass(frozen=True, slots=True)
class CaptureSummary:
    """What a capture came to: the coverage table that ``rlaudit capture`` ends with.

    rows, bytes: by table. joined_trainer: (with a rollout, all) sequences that have a trainer or update score;
    joined_rollout: (with a trainer or update score, all) training sequences that have a rollout score; not_consumed:
    rollouts of other phases. stopped: reasons for which processes stopped capturing. likely_reason: why nothing was captured,
    None where something was. ranks: expected and seen, by job and attempt; empty outside distributed jobs.
    """

    run: str
    processes: tuple[CapturedProcess, ...]
    unreached: tuple[str, ...]
    hooks: tuple[CapturedHook, ...]
    rows: dict[str, int]
    bytes: dict[str, int]
    steps: int
    joined_trainer: tuple[int, int]
    joined_rollout: tuple[int, int]
    not_consumed: int
    dropped: dict[str, dict[str, int]]
    stopped: tuple[str, ...]
    seconds: float | None
    likely_reason: str | None
    ranks: tuple[RankGroup, ...] = ()
