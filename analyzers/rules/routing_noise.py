"""ROUTING_NOISE: experts chosen differently by rollout and trainer at equal weights, and what goes with it in log-probabilities.

Association, not proof: tokens near a routing tie also differ for other reasons. Replaying the recorded routing tells the two apart.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlaudit.analyzers import routing_kernel as rk
from rlaudit.analyzers.measured import Measured
from rlaudit.analyzers.routing_pass import RoutingPass
from rlaudit.analyzers.rules.precision import above_the_line
from rlaudit.analyzers.thresholds import ROUTING_EFFECT_NAMED
from rlaudit.findings import Evidence, Finding

SQL = """SELECT layer, count(*) AS rows, avg(differs::INT) AS disagreement, avg(overlap / top_k) AS overlap FROM routing_pairs
WHERE source_a = 'rollout' AND source_b IN ('trainer', 'update') AND {lag} GROUP BY layer ORDER BY layer"""


def check(measured: Measured, before: Sequence[Finding]) -> list[Finding]:
    """Named as a part of a difference above the line where its tokens differ more than the others; information otherwise."""
    routing = measured.routing_at()
    counts = routing.total()
    if not counts[rk.DIFFERING]:
        return []
    share, floor = disagreement(routing), disagreement(measured.routing_at("floor"))
    effect = conditional_means(routing)
    named = above_the_line(measured.at_basis().metrics()) and effect is not None and effect[1] > ROUTING_EFFECT_NAMED * effect[0]
    tokens, tokens_differing = routing.total_tokens()
    any_layer = tokens_differing / tokens
    layers = {layer: row[rk.DIFFERING] / row[rk.ROWS] for layer, row in routing.by_layer().items() if row[rk.ROWS]}
    worst = max(layers, key=lambda layer: layers[layer])
    title = (
        f"Rollout and trainer chose different experts for {share:.2%} of (token, layer) pairs "
        f"and in some layer of {any_layer:.1%} of tokens"
    )
    if effect is not None and named:
        title += (
            f"; those tokens differ {effect[1] / effect[0]:.1f} times as much as the others"
            if effect[0] > 0
            else "; only those tokens differ"
        )
    evidence = [
        Evidence("(token, layer) pairs that differ", share),
        Evidence("tokens with any layer differing", any_layer),
        Evidence("noise floor: pairs that differ between the trainer's two evaluations", floor),
        Evidence("layer that differs most", worst),
        Evidence("its share of tokens that differ", float(layers[worst])),
    ]
    if effect is not None:
        evidence += [
            Evidence("mean |Δ log p| where no layer differs", effect[0], "nats"),
            Evidence("mean |Δ log p| where some layer differs", effect[1], "nats"),
            Evidence("share of Σ|Δ log p| on tokens where some layer differs", effect[2]),
        ]
    return [
        Finding(
            "ROUTING_NOISE",
            "warn" if named else "info",
            title + ".",
            tuple(evidence),
            {"layers": [layer for layer, value in layers.items() if value > 0]},
            SQL.format(lag="lag = 0" if measured.basis == "equal" else "lag IS NULL"),
            (
                "Replay the rollout's routing in the trainer (R3): what remains of the difference is not routing.",
                "Compute the router's logits in float32 on both sides.",
            ),
        )
    ]


def disagreement(routing: RoutingPass) -> float | None:
    """Share of (token, layer) pairs that differ; None where nothing was compared."""
    counts = routing.total()
    return float(counts[rk.DIFFERING] / counts[rk.ROWS]) if counts[rk.ROWS] else None


def conditional_means(routing: RoutingPass) -> tuple[float, float, float] | None:
    """Mean |Δ log p| of response tokens without and with a routing difference, and the latter's share of Σ|Δ log p|; None where
    either group is empty."""
    (same, same_sum, _), (differ, differ_sum, _) = routing.effect
    if not same or not differ or same_sum + differ_sum == 0:
        return None
    return float(same_sum / same), float(differ_sum / differ), float(differ_sum / (same_sum + differ_sum))
