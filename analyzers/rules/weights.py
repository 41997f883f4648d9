"""WEIGHTS_NOT_APPLIED, WEIGHTS_CORRUPTED, UPDATES_VANISH: what became of the weights that the trainer sent.

A label proves nothing: an engine says the version that it was told. What it received, and what a fixed sequence scores with (its probe),
say whether the weights came, whether they came whole, and whether they moved anything.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlaudit.analyzers.measured import Measured
from rlaudit.analyzers.thresholds import GROWTH_NAMED, PROBE_SAME_WEIGHTS, VANISHED_SHARE
from rlaudit.analyzers.weight_syncs import Move, WeightSyncs
from rlaudit.findings import Evidence, Finding

SQL_WEIGHTS = "SELECT time, fact, policy_version, policy_syncs, policy_updates, engine_id, process FROM weights ORDER BY time"
SQL_PROBES = """SELECT engine_id, started, policy_version, policy_syncs, list_sum(input_logprobs) AS total_logp FROM requests
WHERE phase = 'probe' ORDER BY engine_id, started"""
LOW_PRECISION = ("bfloat16", "float16")


def check(measured: Measured, before: Sequence[Finding]) -> list[Finding]:
    """Needs ``weights`` rows of fact sent; probes and received rows where there are some."""
    syncs = measured.weights
    found = _corrupted(syncs)
    if syncs.sent:
        found += _vanished(measured, syncs) or _not_applied(measured, syncs)
    return found


def _trained(moves: Sequence[Move]) -> list[Move]:
    """Moves between weights that are known to be of different optimizer steps."""
    return [move for move in moves if None not in move.updates and move.updates[0] != move.updates[1]]


def _not_applied(measured: Measured, syncs: WeightSyncs) -> list[Finding]:
    trained = _trained(syncs.moves)
    frozen = [move for move in trained if move.largest == 0.0]
    missing = [version for version in syncs.sent if version not in syncs.received]
    claimed = [version for version in missing if version in syncs.claimed]
    growth = _growth(measured)
    still = bool(frozen) and len(frozen) == len(trained)
    if not still and not missing:
        return []
    if not still and not claimed and not (growth is not None and growth[1] >= GROWTH_NAMED * growth[0]):
        return []  # versions that were sent and not waited for: the last one of a run, for one
    sure = still or (growth is not None and growth[1] >= GROWTH_NAMED * growth[0] and growth[1] > 1e-4)
    evidence = [
        Evidence("versions sent with new weights", len(syncs.sent)),
        Evidence("of these received by an engine", len(syncs.received)),
        Evidence("of these claimed by engine calls", len(syncs.claimed)),
    ]
    if trained:
        evidence.append(Evidence("probes that did not change by a bit over an update", len(frozen)))
        evidence.append(Evidence("probes compared", len(trained)))
    if growth is not None:
        evidence += [
            Evidence("mean |Δ log p| before the first update", growth[0], "nats"),
            Evidence("mean |Δ log p| in the last step", growth[1], "nats"),
        ]
    title = (
        f"The engine computes with the weights that it had: its probe is bit for bit the same after {len(frozen)} weight "
        f"update{'s' if len(frozen) != 1 else ''}."
        if still
        else f"{len(missing)} of {len(syncs.sent)} weight versions that the trainer sent were received by no engine"
        + (", although engines answer under their labels." if claimed else ".")
    )
    return [
        Finding(
            "WEIGHTS_NOT_APPLIED",
            "fail" if sure else "warn",
            title,
            tuple(evidence),
            {"versions": (claimed or missing)[:10]},
            SQL_PROBES if still else SQL_WEIGHTS,
            (
                "Look at the return value of the engine's update call: a failed or skipped update is often only logged.",
                "Capture with --probe, which shows what the engine computes with after each update.",
            ),
        )
    ]


def _growth(measured: Measured) -> tuple[float, float] | None:
    """Mean |Δ log p| of the first and the last step; None where there is no second step."""
    levels: dict[tuple[int, int], list[tuple[int, float]]] = {}
    for key, (stats, _) in measured.main.by_key.items():
        level = stats.metrics().get("logp_diff_mean")
        if level is not None:
            levels.setdefault((key.attempt, key.step), []).append((stats.tokens, level))
    means = [sum(n * level for n, level in own) / sum(n for n, _ in own) for _, own in sorted(levels.items())]
    return (means[0], means[-1]) if len(means) > 1 else None


def _corrupted(syncs: WeightSyncs) -> list[Finding]:
    same = [move for move in syncs.moves if None not in move.updates and move.updates[0] == move.updates[1]]
    broken = [move for move in same if move.mean > PROBE_SAME_WEIGHTS]
    if not broken:
        return []
    worst = max(broken, key=lambda move: move.mean)
    return [
        Finding(
            "WEIGHTS_CORRUPTED",
            "fail",
            "Loading the same weights again changed what the engine computes: the load itself is at fault.",
            (
                Evidence("probes that moved although the weights were the same", len(broken)),
                Evidence("mean change of the probe's log-probabilities", worst.mean, "nats"),
                Evidence("largest change", worst.largest, "nats"),
                Evidence("from", worst.before),
                Evidence("to", worst.after),
            ),
            {"engines": sorted({move.engine for move in broken})},
            SQL_PROBES,
            (
                "Compare the engine's parameters after start and after the update: packed or fused experts that the loader writes in the "
                "checkpoint's layout are the usual case (vLLM: MoE experts on reload).",
                "Restart the engine from a saved checkpoint instead of updating it in place, and compare again.",
            ),
        )
    ]


def _vanished(measured: Measured, syncs: WeightSyncs) -> list[Finding]:
    """Updates that arrived in a narrower dtype and changed (almost) nothing there."""
    moves = _trained(syncs.moves)
    narrow = [dtype for dtype in syncs.dtypes if dtype in LOW_PRECISION]
    wide = "float32" in {*measured.values("weight_dtype", "trainer"), *measured.values("weight_dtype", "update")}
    if not moves or not narrow or not wide or not syncs.received:
        return []
    engine = sum(move.mean for move in moves) / len(moves)
    own = _trained(syncs.trainer_moves)
    trainer = sum(move.mean for move in own) / len(own) if own else None
    still = all(move.largest == 0.0 for move in moves)
    if not still and (trainer is None or engine >= VANISHED_SHARE * trainer):
        return []
    return [
        Finding(
            "UPDATES_VANISH",
            "warn",
            f"The trainer's float32 updates are lost in the engine's {narrow[0]} weights: versions advance, what it computes does not.",
            (
                Evidence("updates received", len(syncs.received)),
                Evidence("mean change of the engine's probe an update", engine, "nats"),
                Evidence("mean change of the trainer's own probe an update", trainer, "nats"),
                Evidence("share of probe positions that changed", sum(move.changed for move in moves) / len(moves), "share"),
            ),
            sql=SQL_PROBES,
            next=(
                "Compare the size of an update with the spacing of the engine's dtype at the weights' size (2^-8 relative in bfloat16).",
                "Keep the rollout engine in a wider dtype, or judge staleness by optimizer steps only where updates can be seen.",
            ),
        )
    ]
