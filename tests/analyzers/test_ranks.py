"""Expected against seen ranks and hosts, from what the processes say of themselves."""

from __future__ import annotations

from typing import Any

from rlaudit.analyzers.ranks import RankedProcess, rank_groups


def process(rank: int, *, world: int = 4, host: str = "n0", emitting: bool = True, attempt: int = 0, **more: Any) -> RankedProcess:
    return RankedProcess(attempt, host, {"rank": rank, "world_size": world, "job": "n0:29500", **more}, emitting)


def test_ranks_that_were_never_seen_are_named() -> None:
    (group,) = rank_groups([process(0), process(1), process(3, host="n1")])
    assert (group.expected, group.seen, group.missing, group.hosts) == (4, (0, 1, 3), (2,), ("n0", "n1"))


def test_a_rank_may_be_seen_without_recording_anything() -> None:
    (group,) = rank_groups([process(0, world=2), process(1, world=2, emitting=False)])
    assert (group.seen, group.emitting, group.missing) == ((0, 1), (0,), ())


def test_a_helper_that_inherited_its_ranks_variables_is_no_other_rank() -> None:
    (group,) = rank_groups([process(0, world=2, emitting=False), process(0, world=2), process(1, world=2)])
    assert (group.seen, group.emitting) == ((0, 1), (0, 1))


def test_every_attempt_counts_for_itself() -> None:
    first, second = rank_groups([process(0, world=2), process(1, world=2), process(0, world=2, attempt=1)])
    assert (first.missing, second.missing) == ((), (1,))


def test_processes_outside_a_distributed_job_form_no_group() -> None:
    assert rank_groups([RankedProcess(0, "n0", {}, True)]) == ()


def test_the_number_of_hosts_is_torchruns_or_follows_from_the_ranks_of_one_host() -> None:
    (told,) = rank_groups([process(0, group_world_size=2, local_world_size=4)])
    (derived,) = rank_groups([process(0, world=16, local_world_size=8)])
    (uneven,) = rank_groups([process(0, world=12, local_world_size=8)])
    (unknown,) = rank_groups([process(0)])
    assert [group.expected_hosts for group in (told, derived, uneven, unknown)] == [2, 2, None, None]
