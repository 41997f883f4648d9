"""Evaluations that parallel ranks wrote in parts: which parts are missing, and whose they are.

A missing part is never guessed at: the sequence's evaluation is left out of every comparison, and the rank that wrote this part of other
sequences is named.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow.compute as pc

from rlaudit.run import Run

EXAMPLES = 5
_COLUMNS = ("attempt", "step", "sequence_id", "source", "update", "parts", "rank")
Evaluation = tuple[int, int, str, str, int]


class MissingParts(NamedTuple):
    """One evaluation that is not whole. ranks: those whose part is missing, as far as other sequences tell; empty where they don't."""

    table: str
    step: int
    sequence_id: str
    source: str
    have: int
    want: int
    ranks: tuple[int, ...]


@dataclass(slots=True)
class PartsCheck:
    """How many evaluations lie in parts, how many of them lack some, by rank, and a few of them."""

    evaluations: int = 0
    incomplete: int = 0
    by_rank: Counter[int] = field(default_factory=Counter)
    steps: set[int] = field(default_factory=set)
    examples: list[MissingParts] = field(default_factory=list)


def check_parts(run: Run) -> PartsCheck:
    """Look at the keys of ``scores`` and ``routing`` rows that say they are parts (``parts`` above 1)."""
    found = PartsCheck()
    for table in ("scores", "routing"):
        rows = run.read(table, _COLUMNS, filters=pc.field("parts") > 1).to_pylist()
        evaluations: dict[Evaluation, list[dict[str, Any]]] = {}
        for row in rows:
            key = (row["attempt"], row["step"], row["sequence_id"], row["source"], row["update"])
            evaluations.setdefault(key, []).append(row)
        _add(found, table, evaluations)
    return found


def _add(found: PartsCheck, table: str, evaluations: dict[Evaluation, list[dict[str, Any]]]) -> None:
    whole = {_ranks(rows) for rows in evaluations.values() if len(rows) == rows[0]["parts"]}
    found.evaluations += len(evaluations)
    for (_, step, sequence_id, source, _), rows in sorted(evaluations.items(), key=lambda item: item[0][:4]):
        want = rows[0]["parts"]
        if len(rows) >= want:
            continue
        ranks = _missing_ranks(_ranks(rows), whole)
        found.incomplete += 1
        found.by_rank.update(ranks)
        found.steps.add(step)
        if len(found.examples) < EXAMPLES:
            found.examples.append(MissingParts(table, step, sequence_id, source, len(rows), want, ranks))


def _ranks(rows: list[dict[str, Any]]) -> tuple[int, ...]:
    """The ranks that wrote an evaluation, each as often as it wrote a part."""
    return tuple(sorted(row["rank"] for row in rows if row["rank"] is not None))


def _missing_ranks(present: tuple[int, ...], whole: set[tuple[int, ...]]) -> tuple[int, ...]:
    """The ranks that a whole evaluation by the same group of ranks has beyond ``present``; empty unless just one group fits."""
    have = Counter(present)
    beyond = {tuple(sorted((Counter(group) - have).elements())) for group in whole if not have - Counter(group)}
    return beyond.pop() if len(beyond) == 1 else ()
