"""What was sent, what was received, and what the engines compute with: three facts about weights, read together.

*sent*: the trainer's rows of ``weights``. *received*: the engines'. *resident*: probes, which are calls of phase ``probe`` that score
the same tokens again and again (``--probe``); engines fuse, pack and quantise, so that their parameters can't be compared, but what they
compute can.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow.compute as pc

from rlaudit.run import Run
from rlaudit.versions import WeightVersions

Array = Any
TRAINER = "trainer"
"""engine_id under which a trainer records its own probes."""
_PROBE = (
    "attempt", "engine_id", "started", "policy_version", "policy_syncs", "policy_updates", "weight_dtype", "input_tokens", "input_logprobs",
)  # fmt: skip
_CALLS = ("attempt", "engine_id", "phase", "policy_version", "version_spans", "weight_dtype")


@dataclass(frozen=True, slots=True)
class Move:
    """How far one engine's probe moved from one of its weights to the next (nats; NaN where an entry was missing).

    updates: optimizer steps behind the weights before and after; None where unknown. changed: share of positions that changed at all.
    """

    engine: str
    attempt: int
    before: str
    after: str
    updates: tuple[int | None, int | None]
    mean: float
    largest: float
    changed: float


@dataclass(frozen=True, slots=True)
class WeightSyncs:
    """The synchronisations of a run.

    sent: versions (labels, or counts as text) that the trainer sent, with optimizer steps above 0. received: those of them that some
    engine says it received. claimed: those of them that engines answered under. moves: of the engines' probes, trainer_moves: of the
    trainer's own. dtypes: of the engines' weights.
    """

    sent: tuple[str, ...] = ()
    received: tuple[str, ...] = ()
    claimed: tuple[str, ...] = ()
    moves: tuple[Move, ...] = ()
    trainer_moves: tuple[Move, ...] = ()
    dtypes: tuple[str, ...] = ()


def read_weight_syncs(run: Run) -> WeightSyncs:
    """Read ``weights`` and the calls' versions. Empty for runs without synchronisations."""
    rows = run.read("weights", ("attempt", "fact", "policy_version", "policy_syncs", "policy_updates")).to_pylist()
    versions = WeightVersions.of(run)
    sent = {name for row in rows if row["fact"] == "sent" and (row["policy_updates"] or 0) > 0 and (name := _name(row)) is not None}
    received = _received(rows)
    claimed, dtypes = _claims(run)
    moves = _moves(run, versions)
    return WeightSyncs(
        tuple(sorted(sent)),
        tuple(sorted(sent & received)),
        tuple(sorted(sent & claimed)),
        tuple(move for move in moves if move.engine != TRAINER),
        tuple(move for move in moves if move.engine == TRAINER),
        tuple(sorted(dtypes)),
    )


def _name(row: dict[str, Any]) -> str | None:
    if row["policy_version"] is not None:
        return str(row["policy_version"])
    return None if row["policy_syncs"] is None else f"synchronisation {row['policy_syncs']}"


def _received(rows: list[dict[str, Any]]) -> set[str]:
    """Versions received: by label, or by the n-th synchronisation where the engine was told no label."""
    got = [row for row in rows if row["fact"] == "received"]
    names = {name for row in got if (name := _name(row))}
    counts = {row["policy_syncs"] for row in got if row["policy_syncs"]}
    return names | {name for row in rows if row["fact"] == "sent" and row["policy_syncs"] in counts and (name := _name(row))}


def _claims(run: Run) -> tuple[set[str], set[str]]:
    rows = run.read("requests", _CALLS, filters=(pc.field("phase") != "probe") | pc.field("phase").is_null())
    names = {str(name) for name in pc.unique(rows["policy_version"]).to_pylist() if name is not None}
    for spans in rows["version_spans"].filter(rows["version_spans"].is_valid()).to_pylist():
        names.update(str(span["version"]) for span in spans if span["version"] is not None)
    return names, {dtype for dtype in pc.unique(rows["weight_dtype"]).to_pylist() if dtype is not None}


def _moves(run: Run, versions: WeightVersions) -> list[Move]:
    rows = run.read("requests", _PROBE, filters=(pc.field("phase") == "probe") & pc.field("input_logprobs").is_valid()).to_pylist()
    by_engine: dict[tuple[int, str, tuple[int, ...]], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by_engine[row["attempt"], row["engine_id"] or "", tuple(row["input_tokens"] or ())].append(row)
    found = []
    for (attempt, engine, _), probes in sorted(by_engine.items()):
        probes.sort(key=lambda row: (row["started"] is None, row["started"]))
        for before, after in pairwise(probes):
            a, b = (np.array(row["input_logprobs"], np.float64) for row in (before, after))
            if len(a) != len(b):
                continue
            distance = np.abs(b - a)[np.isfinite(a) & np.isfinite(b)]
            if len(distance):
                steps = _updates(versions, before), _updates(versions, after)
                spread = float(distance.mean()), float(distance.max()), float((distance > 0).mean())
                found.append(Move(engine, attempt, _name(before) or "unlabelled", _name(after) or "unlabelled", steps, *spread))
    return found


def _updates(versions: WeightVersions, row: dict[str, Any]) -> int | None:
    if row["policy_updates"] is not None:
        return int(row["policy_updates"])
    return versions.updates(row["attempt"], row["policy_version"], row["policy_syncs"])
