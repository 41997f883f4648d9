"""Which score is compared with which: spans of response tokens that two policy evaluations of a sequence both cover.

A sequence is compared only where both evaluations cover the whole response. Where a length differs the sequence is
withheld and counted: an aligned prefix would look like data and be wrong wherever a token is missing in the middle.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from rlaudit.analyzers.grouping import ENGINE, ROLLOUT, TRAINER, UNKNOWN, UPDATE, Group

Array = Any
EXAMPLES = 5


class Spans(NamedTuple):
    """Compared spans, one entry each: starts in the flat values of the group's score and mask lists, and the group's sequence.

    mask_start is -1 where the policy sampled every token. lag is in optimizer steps, ``UNKNOWN`` where a side's version is.
    offset: response position of the span's first token. b_source: TRAINER or UPDATE (whatever source the second side's score is of).
    """

    sequence: Array
    a_start: Array
    b_start: Array
    mask_start: Array
    offset: Array
    length: Array
    lag: Array
    b_source: Array


class LengthMismatch(NamedTuple):
    """A sequence whose response, log-probabilities and mask differ in length (tokens).

    rollout, trainer: None where parts are missing in between. mask: None where there is none.
    """

    step: int
    sequence_id: str
    response: int
    rollout: int | None
    trainer: int | None
    mask: int | None


@dataclass(slots=True)
class Joined:
    """How the sequences of phase train joined. Counts of sequences; examples are a few each.

    broken: a side has only evaluations that lack parts. unscored: sequences that lack a side for another reason.
    """

    sequences: int = 0
    joined: int = 0
    without_rollout: int = 0
    without_trainer: int = 0
    without_both: int = 0
    broken: int = 0
    empty: int = 0
    length_mismatches: int = 0
    duplicate_scores: int = 0
    examples: list[LengthMismatch] = field(default_factory=list)
    unscored: list[tuple[int, str]] = field(default_factory=list)
    unscored_by_step: dict[int, int] = field(default_factory=dict)

    def add(self, other: Joined) -> None:
        """Take in the counts of another group of steps."""
        for name in (
            "sequences",
            "joined",
            "without_rollout",
            "without_trainer",
            "without_both",
            "broken",
            "empty",
            "length_mismatches",
            "duplicate_scores",
        ):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.examples = (self.examples + other.examples)[:EXAMPLES]
        self.unscored = (self.unscored + other.unscored)[:EXAMPLES]
        for step, count in other.unscored_by_step.items():
            self.unscored_by_step[step] = self.unscored_by_step.get(step, 0) + count


class Side(NamedTuple):
    """The scores rows of one evaluation: rows sorted by sequence and first position; sequence i owns rows[first[i]:][:parts[i]].

    broken: True where a sequence has only evaluations that lack parts.
    """

    rows: Array
    first: Array
    parts: Array
    broken: Array
    duplicates: int


def rollout_side(group: Group) -> Side:
    """The scores made at sampling time."""
    return _side(group, group.source == ROLLOUT)


def trainer_side(group: Group) -> Side:
    """The trainer's scores: source ``trainer`` where there is one, otherwise the first ``update``."""
    place = np.where(group.source == TRAINER, 0, 1)
    return _side(group, (group.source == TRAINER) | (group.source == UPDATE), place)


def recompute_side(group: Group) -> Side:
    """Scores of source ``trainer`` only."""
    return _side(group, group.source == TRAINER)


def engine_side(group: Group) -> Side:
    """What engine calls returned, for sequences whose rollout log-probabilities the trainer recorded itself."""
    return _side(group, group.source == ENGINE)


def update_side(group: Group) -> Side:
    """The first ``update`` score of every sequence."""
    return _side(group, group.source == UPDATE)


def _side(group: Group, chosen: Array, place: Array | None = None) -> Side:
    """The best whole evaluation of each sequence among ``chosen``: least place, then least update.

    Rows that repeat a position are duplicates: the first one counts. An evaluation that lacks parts is no evaluation.
    """
    rows = np.flatnonzero(chosen & (group.row_sequence >= 0))
    order = np.zeros(len(group.source), np.int64) if place is None else place
    rows = rows[np.lexsort((group.first_position[rows], group.update[rows], order[rows], group.row_sequence[rows]))]
    same_evaluation = _repeats(group.row_sequence[rows], order[rows], group.update[rows])
    repeats = same_evaluation & _repeats(group.first_position[rows])
    rows, same_evaluation = rows[~repeats], same_evaluation[~repeats]
    evaluation = np.cumsum(~same_evaluation) - 1
    whole = np.bincount(evaluation)[evaluation] >= group.parts[rows] if len(rows) else np.zeros(0, bool)
    has_broken = np.zeros(len(group.step), bool)
    has_broken[group.row_sequence[rows[~whole]]] = True
    rows, evaluation = rows[whole], evaluation[whole]
    sequence = group.row_sequence[rows]
    leads = ~_repeats(sequence)
    first = np.maximum.accumulate(np.where(leads, np.arange(len(rows)), 0))
    rows = rows[evaluation == evaluation[first]]
    parts = np.bincount(group.row_sequence[rows], minlength=len(group.step))
    return Side(rows, np.cumsum(parts) - parts, parts, has_broken & (parts == 0), int(repeats.sum()))


def _repeats(*columns: Array) -> Array:
    """True for entries that equal the one before in every column."""
    same = np.ones(len(columns[0]), bool)
    same[:1] = False
    for column in columns:
        same[1:] &= column[1:] == column[:-1]
    return same


def pair(group: Group, a: Side, b: Side, joined: Joined | None = None) -> Spans:
    """Spans of the train sequences that ``a`` and ``b`` both cover; ``joined`` (where given) is filled with what joined and what
    did not."""
    has_a, has_b = a.parts > 0, b.parts > 0
    both = np.flatnonzero(group.train & has_a & has_b)
    simple = (a.parts[both] == 1) & (b.parts[both] == 1)
    if group.spans is not None:
        simple &= np.asarray(group.spans.is_null())[both]
    quick = both[simple]
    ra, rb = a.rows[a.first[quick]], b.rows[b.first[quick]]
    la, lb, want = group.logprobs.length[ra], group.logprobs.length[rb], group.response[quick]
    mask = group.sampled.length[quick]
    whole = (group.first_position[ra] == 0) & (group.first_position[rb] == 0) & (la == want) & (lb == want) & ((mask < 0) | (mask == want))
    lag = np.where((group.updates[ra] == UNKNOWN) | (group.updates[rb] == UNKNOWN), UNKNOWN, group.updates[rb] - group.updates[ra])
    use = whole & (want > 0)
    spans = _spans(
        group,
        quick[use],
        group.logprobs.start[ra[use]],
        group.logprobs.start[rb[use]],
        np.zeros(int(use.sum()), np.int64),
        want[use],
        lag[use],
        group.source[rb[use]],
    )
    mismatched = [
        _mismatch(group, int(s), int(x), int(y)) for s, x, y in zip(quick[~whole][:EXAMPLES], la[~whole], lb[~whole], strict=False)
    ]
    mismatches = int((~whole).sum())
    slow = [_pieces(group, a, b, int(sequence)) for sequence in both[~simple]]
    spans = _concatenate([spans, *[found for found in slow if isinstance(found, Spans)]])
    failed = [found for found in slow if isinstance(found, LengthMismatch)]
    if joined is not None:
        _count(group, joined, a, b, mismatches + len(failed), [*mismatched, *failed])
    return spans


def _count(group: Group, joined: Joined, a: Side, b: Side, mismatches: int, examples: list[LengthMismatch]) -> None:
    train, has_a, has_b = group.train, a.parts > 0, b.parts > 0
    broken = train & (a.broken | b.broken)
    lacking = np.flatnonzero(train & ~(has_a & has_b) & ~broken & (group.response != 0))
    steps, missing = np.unique(group.step[lacking], return_counts=True)
    joined.add(
        Joined(
            sequences=int(train.sum()),
            joined=int((train & has_a & has_b).sum()),
            without_rollout=int((train & has_b & ~has_a).sum()),
            without_trainer=int((train & has_a & ~has_b).sum()),
            without_both=int((train & ~has_a & ~has_b).sum()),
            broken=int(broken.sum()),
            empty=int((train & (group.response == 0)).sum()),
            length_mismatches=mismatches,
            duplicate_scores=a.duplicates + b.duplicates,
            examples=examples[:EXAMPLES],
            unscored=[(int(group.step[i]), str(group.ids[i])) for i in lacking[:EXAMPLES]],
            unscored_by_step=dict(zip(steps.tolist(), missing.tolist(), strict=True)),
        )
    )


def _spans(
    group: Group, sequence: Array, a_start: Array, b_start: Array, offset: Array, length: Array, lag: Array, b_source: Array
) -> Spans:
    mask_start = np.where(group.sampled.length[sequence] >= 0, group.sampled.start[sequence] + offset, -1)
    return Spans(sequence, a_start, b_start, mask_start, offset, length, lag, b_source)


def _concatenate(parts: list[Spans]) -> Spans:
    return Spans(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _mismatch(group: Group, sequence: int, rollout: int | None, trainer: int | None) -> LengthMismatch:
    mask = int(group.sampled.length[sequence])
    return LengthMismatch(
        int(group.step[sequence]), str(group.ids[sequence]), int(group.response[sequence]), rollout, trainer, None if mask < 0 else mask
    )


def _parts(group: Group, side: Side, sequence: int) -> list[tuple[int, int, int, int]]:
    """(first response position, one past the last, start in the values, policy updates) of each part."""
    rows = side.rows[side.first[sequence] :][: side.parts[sequence]]
    return [
        (
            int(group.first_position[r]),
            int(group.first_position[r] + group.logprobs.length[r]),
            int(group.logprobs.start[r]),
            int(group.updates[r]),
        )
        for r in rows
    ]


def _covered(parts: list[tuple[int, int, int, int]]) -> int | None:
    """Length covered from position 0, None where parts leave a gap or overlap."""
    end = 0
    for first, last, _, _ in parts:
        if first != end or last < first:
            return None
        end = last
    return end


def _pieces(group: Group, a: Side, b: Side, sequence: int) -> Spans | LengthMismatch:
    """Spans of a sequence whose scores lie in several parts or that was sampled under several policy versions."""
    of_a, of_b = _parts(group, a, sequence), _parts(group, b, sequence)
    covered, response = (_covered(of_a), _covered(of_b)), int(group.response[sequence])
    if covered != (response, response) or int(group.sampled.length[sequence]) not in (-1, response):
        return _mismatch(group, sequence, *covered)
    found = []
    for first_a, last_a, start_a, updates_a in of_a:
        for first_b, last_b, start_b, updates_b in of_b:
            for low, high, updates in _versions(group, sequence, max(first_a, first_b), min(last_a, last_b), updates_a):
                lag = UNKNOWN if UNKNOWN in (updates, updates_b) else updates_b - updates
                found.append((start_a + low - first_a, start_b + low - first_b, low, high - low, lag))
    columns = np.ascontiguousarray(np.array(found, np.int64).reshape(-1, 5).T)
    of_b_source = np.full(len(found), group.source[b.rows[b.first[sequence]]])
    a_start, b_start, offset, length, lag = columns
    return _spans(group, np.full(len(found), sequence), a_start, b_start, offset, length, lag, of_b_source)


def _versions(group: Group, sequence: int, low: int, high: int, updates: int) -> Iterator[tuple[int, int, int]]:
    """[low, high) cut at the borders of the sequence's policy versions: (low, high, policy updates)."""
    if high <= low:
        return
    spans = group.spans[sequence].as_py() if group.spans is not None else None
    if not spans:
        yield low, high, updates
        return
    for span in spans:
        first, last = max(low, span["start"]), min(high, span["end"])
        if first < last:
            yield first, last, int(UNKNOWN) if span["updates"] is None else int(span["updates"])
