"""What engine calls say about caches and restarts: prefixes kept over a weight update, calls computed anew under other weights."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc

from rlaudit.lists import list_column
from rlaudit.prefix_hashes import Powers, Prefixes, concatenated
from rlaudit.run import Run

LOOKED_AT = 256
"""Calls of each engine and version that are looked at: a stale prefix shows at the first ones."""
EXAMPLES = 5
_COLUMNS = (
    "attempt", "engine_id", "request_id", "phase", "started", "policy_version", "policy_syncs", "version_spans", "cached_tokens",
    "retractions", "finish_reason", "parent_id",
)  # fmt: skip


class StalePrefix(NamedTuple):
    """A call that took ``cached`` tokens from the prefix cache which no earlier call under its version can have put there."""

    engine: str
    request_id: str
    version: str
    cached: int


@dataclass(slots=True)
class EngineCalls:
    """Counts of engine calls. states: finish reason (``eval``, ``probe`` and the like for other phases) to calls that no sequence consumed.

    retracted: calls that were put back and computed anew while the weights changed: (request id, versions).
    """

    calls: int = 0
    linked: int = 0
    states: dict[str, int] = field(default_factory=dict)
    stale: list[StalePrefix] = field(default_factory=list)
    stale_count: int = 0
    stale_looked_at: int = 0
    retracted: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)


def read_engine_calls(run: Run) -> EngineCalls:
    """Read ``requests``; cheap where there are none."""
    rows = run.read("requests", _COLUMNS)
    found = EngineCalls(calls=rows.num_rows)
    if not rows.num_rows:
        return found
    links = run.read("links", ("attempt", "request_id"))
    linked = set(zip(links["attempt"].to_pylist(), links["request_id"].to_pylist(), strict=True))
    listed = rows.to_pylist()
    for row in listed:
        if (row["attempt"], row["request_id"]) in linked:
            found.linked += 1
            continue
        state = row["phase"] if row["phase"] not in (None, "train") else row["finish_reason"] or "unfinished"
        found.states[state] = found.states.get(state, 0) + 1
    for row in listed:
        names = tuple(dict.fromkeys(str(span["version"]) for span in row["version_spans"] or ()))
        if (row["retractions"] or 0) > 0 and len(names) > 1:
            found.retracted.append((row["request_id"], names))
    _find_stale(run, listed, found)
    return found


def _find_stale(run: Run, rows: list[dict[str, Any]], found: EngineCalls) -> None:
    by_version: dict[tuple[int, str], dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        name = row["policy_version"] if row["policy_version"] is not None else row["policy_syncs"]
        if name is not None and not row["version_spans"]:
            by_version[row["attempt"], row["engine_id"] or ""][str(name)].append(row)
    for (attempt, engine), versions in by_version.items():
        groups = [sorted(own, key=lambda row: (row["started"] is None, row["started"])) for own in versions.values()]
        groups.sort(key=lambda own: (own[0]["started"] is None, own[0]["started"]))
        for own in groups[1:]:
            first = own[:LOOKED_AT]
            if any((row["cached_tokens"] or 0) > 0 for row in first):
                _look(run, attempt, engine, first, found)


def _look(run: Run, attempt: int, engine: str, calls: list[dict[str, Any]], found: EngineCalls) -> None:
    """Calls of one version in the order of their start: is each cached prefix one that a call before it had?"""
    ids = [row["request_id"] for row in calls]
    text = run.read(
        "requests",
        ("request_id", "input_tokens", "output_tokens"),
        filters=(pc.field("attempt") == attempt) & pc.field("request_id").isin(ids),
    )
    place = {name: i for i, name in enumerate(text["request_id"].to_pylist())}
    powers = Powers()
    given, returned = (Prefixes(list_column(text[name]), powers) for name in ("input_tokens", "output_tokens"))
    cached = sorted({row["cached_tokens"] for row in calls if row["cached_tokens"]})
    known: set[tuple[int, int]] = set()
    prefixes = [_prefixes(given, returned, powers, place[row["request_id"]], cached) for row in calls]
    for n, row in enumerate(calls):
        i = place[row["request_id"]]
        length = row["cached_tokens"] or 0
        # Samples of one call share a prompt that the engine computes first, in a call of its own that nobody sees.
        if 0 < length <= given.length[i] and row["parent_id"] is None:
            found.stale_looked_at += 1
            own = length, int(_hash(given, returned, powers, i, length))
            together = (m for m, other in enumerate(calls) if m != n and other["started"] == row["started"])
            if own not in known and not any(own in prefixes[m] for m in together):
                found.stale_count += 1
                if len(found.stale) < EXAMPLES:
                    version = row["policy_version"] if row["policy_version"] is not None else f"synchronisation {row['policy_syncs']}"
                    found.stale.append(StalePrefix(engine, row["request_id"], str(version), length))
        known |= prefixes[n]


def _prefixes(given: Prefixes, returned: Prefixes, powers: Powers, row: int, lengths: list[int]) -> set[tuple[int, int]]:
    """Lengths and hashes of a call's beginnings."""
    total = int(given.length[row] + returned.length[row])
    return {(k, int(_hash(given, returned, powers, row, k))) for k in lengths if k <= total}


def _hash(given: Prefixes, returned: Prefixes, powers: Powers, row: int, length: int) -> Any:
    """Hash of the first ``length`` tokens of a call's input and output."""
    own = np.array([row])
    head = min(length, int(given.length[row]))
    left = given.at(own, np.array([head]))
    return concatenated(left, np.array([head]), returned.at(own, np.array([length - head])), powers)[0]
