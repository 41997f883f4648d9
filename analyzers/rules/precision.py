"""NUMERICS_PRECISION: rollout and trainer differ by more than published healthy runs, at equal weights, and not for a reason above.

Named only by exclusion: nothing that ranks before it (tokens, lengths, placeholders, semantics, the importance ratio) was found.
The level is set beside the run's own noise floor, where the trainer evaluated the same tokens twice at the same weights.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlaudit.analyzers.measured import Measured
from rlaudit.analyzers.thresholds import FLOOR_RATIO_NAMED, K3_TOKENS_TO_TEST, K3_WARN, LOGP_DIFF_WARN
from rlaudit.findings import Evidence, Finding

SQL = """SELECT step, count(*) AS tokens, avg(abs(delta)) AS logp_diff_mean, quantile_cont(abs(delta), 0.99) AS logp_diff_p99,
avg(k3(delta)) AS k3, avg(importance_ratio(delta)) AS ratio_mean
FROM tokens WHERE comparable AND phase = 'train' AND {lag} GROUP BY step ORDER BY step"""
EXPLAINS = (
    "LEN_MISMATCH",
    "TOKEN_MISMATCH",
    "LOGP_CONSTANT_ZERO",
    "LOGP_POSITIVE",
    "LOGP_SEMANTICS_DIFFER",
    "LOGP_ALTERED",
    "IMPORTANCE_RATIO_OFF",
    "WEIGHTS_NOT_APPLIED",
    "WEIGHTS_CORRUPTED",
    "PREFIX_CACHE_STALE",
)
REDUCED = ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "int8", "int4")


def above_the_line(values: dict[str, float | None]) -> bool:
    """True where mean |Δ log p| or k3 is above the published warning line."""
    return (values.get("logp_diff_mean") or 0.0) > LOGP_DIFF_WARN or (values.get("k3") or 0.0) > K3_WARN


def check(measured: Measured, before: Sequence[Finding]) -> list[Finding]:
    """A warning above the line, unless an earlier finding already explains a difference."""
    stats = measured.at_basis()
    values = stats.metrics()
    if not above_the_line(values) or any(finding.code in EXPLAINS and finding.severity != "info" for finding in before):
        return []
    level, floor = values["logp_diff_mean"], measured.floor_stats().metrics().get("logp_diff_mean")
    dtypes = {side: _dtypes(measured, sources) for side, sources in (("rollout", ("rollout",)), ("trainer", ("trainer", "update")))}
    reduced = sorted({dtype for names in dtypes.values() for dtype in names if dtype in REDUCED})
    cause = f"{' and '.join(reduced)} arithmetic" if reduced else "numerical differences"
    equal = "at equal weights" if measured.basis == "equal" else "(policy versions unknown: staleness may be a part of it)"
    return [
        Finding(
            "NUMERICS_PRECISION",
            "warn",
            f"Rollout and trainer differ by {level:.2g} nats a token {equal}: {cause}{_against_floor(level, floor)}.",
            (
                *_level(values, floor),
                *_exclusions(measured),
                *(Evidence(f"{side} dtype", ", ".join(names) or "unknown") for side, names in dtypes.items()),
            ),
            sql=SQL.format(lag="lag = 0" if measured.basis == "equal" else "lag IS NULL"),
            next=(
                "Rerun a few steps in float32 on both sides: the difference should fall to about 1e-5.",
                "Compute the language-model head and the softmax in float32 on both sides.",
                "For a mixture of experts, see the routing finding: replaying the rollout's routing removes that part.",
            ),
        )
    ]


def _dtypes(measured: Measured, sources: tuple[str, ...]) -> list[str]:
    return list(
        dict.fromkeys(str(value) for source in sources for column in ("dtype", "weight_dtype") for value in measured.values(column, source))
    )


def _against_floor(level: float | None, floor: float | None) -> str:
    if floor is None or level is None:
        return ", with no measured noise floor to set it against"
    if floor == 0.0:
        return "; the trainer repeats its own numbers exactly, so the rollout's forward pass differs"
    ratio = level / floor
    if ratio < FLOOR_RATIO_NAMED:
        return f", of which the trainer alone shows {floor:.2g} (two evaluations of the same tokens)"
    return f", {ratio:.1f} times the trainer's own noise floor of {floor:.2g}"


def _level(values: dict[str, float | None], floor: float | None) -> list[Evidence]:
    level = values["logp_diff_mean"]
    evidence = [
        Evidence("mean |Δ log p|", level, "nats"),
        Evidence("published warning line", LOGP_DIFF_WARN, "nats"),
        Evidence("k3", values["k3"], "nats"),
        Evidence("published warning line of k3", K3_WARN, "nats"),
        Evidence("noise floor: mean |Δ log p| of the trainer's two evaluations", floor, "nats"),
    ]
    if floor and level is not None:
        evidence.append(Evidence("level over noise floor", level / floor))
    return evidence


def _exclusions(measured: Measured) -> list[Evidence]:
    """What speaks against wrong semantics, each with its interval."""
    stats = measured.at_basis()
    values, error, ratio = stats.metrics(), stats.ratio_mean_error(), stats.k3_over_k1()
    found = [Evidence("mean importance ratio (1 where the rollout's log-probabilities are the law that sampled)", values["ratio_mean"])]
    if error is not None:
        found.append(Evidence("its standard error (sequences as units)", error))
    k3 = values["k3"]
    if ratio is not None and k3 is not None and k3 * stats.tokens >= K3_TOKENS_TO_TEST:
        found += [Evidence("k3 over k1 (1 for two valid laws that are close)", ratio[0]), Evidence("its standard error", ratio[1])]
    return found
