"""Hand-made reports: one that is fine, one with everything that a report can hold."""

from __future__ import annotations

import dataclasses

import pytest

from rlaudit.analyzers.results import (
    Coverage,
    FrameworkCheck,
    LayerRouting,
    MetricDefinition,
    NoiseFloor,
    Report,
    RoutingEffect,
    StepMetrics,
    StepRouting,
    WorstSequence,
)
from rlaudit.findings import Evidence, Finding, Verdict

DEFINITIONS = (
    MetricDefinition(
        "pearson_prob",
        "Pearson correlation of probabilities",
        "corr(exp(lt), exp(lr))",
        None,
        "tokens",
        "MiniMax-M1",
        {"verl": "training/rollout_actor_probs_pearson_corr"},
    ),
    MetricDefinition(
        "logp_diff_mean",
        "mean |Δ log p|",
        "mean |lt − lr|",
        "nats",
        "token mean",
        "",
        {"trl": "sampling/sampling_logp_difference/mean"},
    ),
    MetricDefinition("logp_diff_p99", "99th percentile of |Δ log p|", "q0.99 |lt − lr|", "nats", "tokens", ""),
    MetricDefinition("logp_diff_max", "largest |Δ log p|", "max |lt − lr|", "nats", "tokens", ""),
    MetricDefinition("k3", "k3", "mean exp(Δ) − Δ − 1", "nats", "token mean", "Schulman 2020"),
    MetricDefinition("ratio_gt2", "share of tokens beyond ratio 2", "mean 1[max(w, 1/w) > 2]", None, "token mean", "R3"),
)
SQL = "select step, corr(exp(trainer_logp), exp(rollout_logp)) as pearson\nfrom tokens\nwhere is_sampled\ngroup by step\norder by step"


def values(scale: float) -> dict[str, float | None]:
    return {
        "pearson_prob": 1 - 3.2e-4 * scale,
        "logp_diff_mean": 1.234e-2 * scale,
        "logp_diff_p99": 8.1e-2 * scale,
        "logp_diff_max": 0.777 * scale,
        "k3": 3.3e-4 * scale,
        "ratio_gt2": 1.5e-5 * scale,
    }


def full(steps: int = 12) -> Report:
    return Report(
        run="runs/demo",
        verdict=Verdict(
            "WARN", "Routing differs between rollout and trainer", ("ROUTING_NOISE: Routing differs between rollout and trainer",)
        ),
        findings=(
            Finding(
                "ROUTING_NOISE",
                "warn",
                "Routing differs between rollout and trainer",
                evidence=(
                    Evidence("(token, layer) pairs with another set of experts", 0.0312, "share"),
                    Evidence("measured noise floor", 1.2e-06, "nats"),
                    Evidence("sequences compared", 12288),
                    Evidence("highest log-probability", float("inf"), "nats"),
                    Evidence("unknown", None),
                ),
                where={"steps": list(range(steps)), "layers": [2]},
                sql="select layer, avg(differs::int) from routing_pairs group by layer order by layer",
                next=("Replay the rollout's routing in the trainer (R3).", "Compute the router in float32."),
            ),
            Finding(
                "PRECISION",
                "info",
                "Both sides compute in bfloat16",
                evidence=(Evidence("trainer dtype", "bfloat16"), Evidence("autocast", True)),
            ),
        ),
        coverage=Coverage(
            steps=steps,
            sequences=192,
            joined=190,
            without_rollout=0,
            without_trainer=2,
            not_consumed=8,
            tokens=12400,
            sampled_tokens=12288,
            compared_tokens=12250,
            dropped_rows=3,
            routed_sequences=190,
            routing_joined=190,
        ),
        facts={"run": "7f3a9c", "command": "python train.py --dtype bf16", "framework": "trl 1.16.0"},
        overall=values(1),
        by_step=tuple(StepMetrics(i, 0, 1024, values(1 + i / 10)) for i in range(steps)),
        routing_by_layer=(LayerRouting(0, 12250, 0.0101, 0.9943), LayerRouting(2, 12250, 0.0522, 0.9701)),
        routing_by_step=tuple(StepRouting(i, 1024, 0.03 + i / 1000, 0.0588) for i in range(steps)),
        noise_floor=NoiseFloor("trainer and first update forward at equal weights", 6144, values(1e-2)),
        framework_checks=(
            FrameworkCheck(1, "trl", "sampling/sampling_logp_difference/mean", 0.012341, 0.01234, True),
            FrameworkCheck(2, "trl", "sampling/sampling_logp_difference/mean", 0.02, 0.01234, False),
            FrameworkCheck(3, "trl", "sampling/sampling_logp_difference/mean", None, 0.01234, None),
        ),
        definitions=DEFINITIONS,
        queries={"Pearson of probabilities by step": SQL},
        withheld=("Staleness: the policy version of 8 sequences is unknown.",),
        rlaudit_version="0.1.0",
        routing_effect=RoutingEffect(11000, 1250, 0.009, 0.0416, 0.3443),
        worst_sequences=(WorstSequence(11, "s11-7", 64, 0.09, 31, 1.63), WorstSequence(3, "s3-0", 12, 0.08, 0, 0.9)),
    )


def healthy() -> Report:
    report = full(3)
    coverage = dataclasses.replace(
        report.coverage, joined=192, without_trainer=0, not_consumed=0, dropped_rows=0, routed_sequences=0, routing_joined=0
    )
    return dataclasses.replace(
        report,
        coverage=coverage,
        verdict=Verdict("OK", "Rollout and trainer agree: 12,250 tokens of 3 steps compared, largest |Δ log p| 1.2e-05."),
        findings=(),
        routing_effect=None,
        worst_sequences=(),
        routing_by_layer=(),
        routing_by_step=(),
        noise_floor=None,
        framework_checks=(),
        withheld=(),
    )


@pytest.fixture
def full_report() -> Report:
    """Findings of two severities, routing, noise floor, framework checks, withheld: every section."""
    return full()


@pytest.fixture
def long_report() -> Report:
    """500 steps; the last is the worst."""
    return full(500)


@pytest.fixture
def healthy_report() -> Report:
    """OK, dense, nothing withheld."""
    return healthy()
