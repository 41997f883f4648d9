"""Which ranks of a distributed job capture saw, beside those that there should be."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from rlaudit.analyzers.results import RankGroup


class RankedProcess(NamedTuple):
    """One process's own word about its rank (``ranks`` in its events' details), and whether it wrote rows."""

    attempt: int
    host: str
    ranks: dict[str, Any]
    emitting: bool


def rank_groups(processes: Iterable[RankedProcess]) -> tuple[RankGroup, ...]:
    """One group for each job (torchrun's run id, or the rendezvous address) and attempt; processes without ranks are left out.

    Helpers that a rank started inherit its variables and count as that rank.
    """
    groups: dict[tuple[int, str], list[RankedProcess]] = {}
    for process in processes:
        if process.ranks:
            groups.setdefault((process.attempt, process.ranks["job"]), []).append(process)
    return tuple(_group(attempt, job, members) for (attempt, job), members in sorted(groups.items()))


def _group(attempt: int, job: str, members: list[RankedProcess]) -> RankGroup:
    expected = max(member.ranks["world_size"] for member in members)
    hosts = [count for member in members if (count := _expected_hosts(member.ranks)) is not None]
    return RankGroup(
        attempt=attempt,
        job=job,
        expected=expected,
        seen=tuple(sorted({member.ranks["rank"] for member in members})),
        emitting=tuple(sorted({member.ranks["rank"] for member in members if member.emitting})),
        expected_hosts=max(hosts) if hosts else None,
        hosts=tuple(sorted({member.host for member in members})),
    )


def _expected_hosts(ranks: dict[str, Any]) -> int | None:
    """Nodes of the job: as torchrun says, otherwise from the ranks of this node where all nodes have as many; None where unknown."""
    if "group_world_size" in ranks:
        return int(ranks["group_world_size"])
    local = ranks.get("local_world_size")
    return ranks["world_size"] // local if local and ranks["world_size"] % local == 0 else None
