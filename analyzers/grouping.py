"""What the token pass reads at a time: the sequences and scores of a range of steps, and how their rows belong together.

Memory is bounded by reading groups of whole steps whose files add up to about ``GROUP_BYTES`` on disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rlaudit.analyzers.token_sums import Tokens, tokens_of
from rlaudit.arrow import arrow_schema
from rlaudit.lists import ListColumn, flags, list_column, nulls
from rlaudit.run import Run

Array = Any
Steps = tuple[int, int]

GROUP_BYTES = 12 << 20
UNKNOWN = np.iinfo(np.int64).min
"""Stands for an unknown integer in numpy columns."""

ROLLOUT, TRAINER, UPDATE, ENGINE, OTHER = 0, 1, 2, 3, 4
SOURCES = {"rollout": ROLLOUT, "trainer": TRAINER, "update": UPDATE, "engine": ENGINE}

_SEQUENCES = ("attempt", "step", "sequence_id", "phase", "prompt_length", "response_length", "sampled_mask", "version_spans")
_SCORES = ("attempt", "step", "sequence_id", "source", "update", "first_position", "logprobs", "policy_updates", "parts")
SEMANTICS = ("source", "forward", "temperature", "logprob_mode", "dtype", "weight_dtype", "backend")
"""Columns of ``scores`` that say what its log-probabilities mean."""
SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""Columns of ``sequences`` that say how its tokens were sampled."""


def plan(run: Run) -> list[Steps]:
    """Ranges of steps, in order, that cover the run and are each read at once.

    Steps whose segments overlap (a late score lies in a later file than its rollout) are still read a group at a time: a
    segment that spans several groups is read for each of them.
    """
    weights: dict[int, float] = {}
    for table in ("sequences", "scores"):
        segments = run.segments(table)
        for segment in segments:
            if segment.first_step is None or segment.last_step is None:
                continue
            steps = range(segment.first_step, segment.last_step + 1)
            share = run.bytes(table) / len(segments) / len(steps)
            for step in steps:
                weights[step] = weights.get(step, 0.0) + share
    groups: list[Steps] = []
    first, held = None, 0.0
    last = 0
    for step in sorted(weights):
        if first is not None and held + weights[step] > GROUP_BYTES:
            groups.append((first, last))
            first, held = None, 0.0
        first = step if first is None else first
        held += weights[step]
        last = step
    if first is not None:
        groups.append((first, last))
    return groups


class Group(NamedTuple):
    """The rows of a range of steps. Arrays of the first block have one entry a sequence, of the second one a scores row.

    Unknown integers are ``UNKNOWN``. train: phase is train. response, prompt: lengths in tokens (-1: null; the
    prompt's also where there is no routing to place by it). sampled: the mask of sampled
    tokens, sampled_tokens how many there are, in_loss: the loss mask (None unless asked for). row_sequence: the score's sequence,
    -1 where it has no row. parts: into how many rows the score's evaluation is split (1: whole).
    semantics, sampling: the distinct values of SEMANTICS and SAMPLING with their number of rows (``count``).
    """

    attempt: Array
    step: Array
    ids: pa.Array
    train: Array
    response: Array
    prompt: Array
    sampled: ListColumn
    sampled_tokens: Array
    in_loss: ListColumn | None
    ranks: Array
    spans: pa.Array | None

    row_sequence: Array
    source: Array
    update: Array
    first_position: Array
    updates: Array
    parts: Array
    logprobs: ListColumn
    tokens: Tokens

    duplicate_sequences: int
    orphan_scores: int
    semantics: pa.Table
    sampling: pa.Table


def load(run: Run, steps: Steps, *, loss_mask: bool = False) -> Group:
    """Read one group. A sequence that occurs twice keeps its first row. loss_mask: read that column too."""
    more = ("loss_mask", "rank") if loss_mask else ()
    sequences = read_rows(run, "sequences", (*_SEQUENCES, *SAMPLING, *more), steps)
    scores = read_rows(run, "scores", tuple(dict.fromkeys((*_SCORES, *SEMANTICS))), steps)
    keys, row_keys = _keys(sequences, scores)
    _, kept = np.unique(keys, return_index=True)
    duplicates = len(keys) - len(kept)
    if duplicates:
        kept = np.sort(kept)
        sequences, keys = sequences.take(pa.array(kept)), keys[kept]
    train = np.asarray(pc.fill_null(pc.equal(sequences["phase"], "train"), False))
    spans = sequences["version_spans"].combine_chunks() if sequences["version_spans"].null_count < sequences.num_rows else None
    row_sequence = _lookup(keys, row_keys)
    response = _lengths(sequences["response_length"])
    logprobs, sampled = list_column(scores["logprobs"]), list_column(_nulls_are_sampled(sequences["sampled_mask"]))
    return Group(
        attempt=integers(sequences["attempt"]),
        step=integers(sequences["step"]),
        ids=sequences["sequence_id"].combine_chunks(),
        train=train,
        response=response,
        prompt=_lengths(sequences["prompt_length"]),
        sampled=sampled,
        sampled_tokens=_sampled_tokens(sequences["sampled_mask"], response),
        in_loss=list_column(_nulls_are_sampled(sequences["loss_mask"])) if loss_mask else None,
        ranks=integers(sequences["rank"]) if loss_mask else np.zeros(0, np.int64),
        spans=spans,
        row_sequence=row_sequence,
        source=source_codes(scores["source"]),
        update=integers(scores["update"]),
        first_position=integers(scores["first_position"]),
        updates=integers(scores["policy_updates"]),
        parts=integers(scores["parts"]).clip(1),
        logprobs=logprobs,
        tokens=tokens_of(logprobs.values, nulls(logprobs), flags(sampled)),
        duplicate_sequences=duplicates,
        orphan_scores=int((row_sequence < 0).sum()),
        semantics=_distinct(scores, SEMANTICS),
        sampling=_distinct(sequences.select(SAMPLING).filter(pa.array(train)), SAMPLING),
    )


def _distinct(table: pa.Table, columns: tuple[str, ...]) -> pa.Table:
    return table.select(columns).group_by(columns, use_threads=False).aggregate([([], "count_all")]).rename_columns([*columns, "count"])


def read_rows(run: Run, table: str, columns: Sequence[str], steps: Steps) -> pa.Table:
    """Rows of ``steps``. Segments that lie within them are read without a filter, in half the time and memory.

    For tables whose rows have a step (of those without one, some may come along).
    """
    schema = pa.schema([arrow_schema(table).field(name) for name in columns])
    within = (pc.field("step") >= steps[0]) & (pc.field("step") <= steps[1])
    parts = []
    for segment in run.segments(table, steps):
        first, last = segment.first_step, segment.last_step
        whole = first is not None and last is not None and steps[0] <= first and last <= steps[1]
        parts.append(run.read_segment(segment, columns, None if whole else within).cast(schema))
    return pa.concat_tables(parts) if parts else schema.empty_table()


def locate(group: Group, table: pa.Table) -> Array:
    """For each row of ``table`` (attempt, step, sequence_id) its sequence in ``group``, -1 where there is none."""
    mine = pa.table({"attempt": group.attempt, "step": group.step, "sequence_id": group.ids})
    theirs = table.select(["attempt", "step", "sequence_id"])
    keys, wanted = _keys(mine, theirs.cast(mine.schema))
    return np.where(np.asarray(theirs["sequence_id"].is_valid()), _lookup(keys, wanted), -1)


def integers(column: pa.ChunkedArray) -> Array:
    """An integer column as int64, ``UNKNOWN`` where null."""
    return np.asarray(pc.fill_null(column.cast(pa.int64()), int(UNKNOWN)))


def _lengths(column: pa.ChunkedArray) -> Array:
    """A length column as int64, -1 where the list itself is null."""
    return np.asarray(pc.fill_null(column.cast(pa.int64()), -1))


def source_codes(column: pa.ChunkedArray) -> Array:
    """ROLLOUT, TRAINER, UPDATE, ENGINE or OTHER for each row."""
    encoded = pc.index_in(column, pa.array(list(SOURCES)))
    return np.asarray(pc.fill_null(encoded, OTHER))


def _keys(*tables: pa.Table) -> list[Array]:
    """One integer for each row of each table: equal where attempt, step and sequence_id are."""
    joined = pa.concat_tables([table.select(["attempt", "step", "sequence_id"]) for table in tables])
    codes = joined["sequence_id"].combine_chunks().dictionary_encode()
    ids = np.asarray(pc.fill_null(codes.indices, -1)).astype(np.int64) + 1
    key = ids
    size = len(codes.dictionary) + 1
    for name in ("step", "attempt"):
        values, place = np.unique(integers(joined[name]), return_inverse=True)
        key = key + place.reshape(-1).astype(np.int64) * size
        size *= max(1, len(values))
    return list(np.split(key, np.cumsum([table.num_rows for table in tables])[:-1]))


def _lookup(keys: Array, wanted: Array) -> Array:
    """For each of ``wanted`` its place in ``keys`` (which are distinct), -1 where it isn't there."""
    if len(keys) == 0:
        return np.full(len(wanted), -1, np.int64)
    order = np.argsort(keys, kind="stable")
    place = order[np.minimum(np.searchsorted(keys, wanted, sorter=order), len(keys) - 1)]
    return np.where(keys[place] == wanted, place, -1)


def _sampled_tokens(mask: pa.ChunkedArray, response: Array) -> Array:
    """Number of sampled tokens of each sequence: the mask's, or all of the response where there is no mask."""
    counted = [np.zeros(0, np.int64)]
    for chunk in mask.chunks:
        offsets = np.asarray(chunk.offsets)
        below = np.zeros(len(chunk.values) + 1, np.int64)
        np.cumsum(np.asarray(pc.fill_null(chunk.values, True)), out=below[1:])
        counted.append(below[offsets[1:]] - below[offsets[:-1]])
    return np.where(np.asarray(mask.is_valid()), np.concatenate(counted), response.clip(0))


def _nulls_are_sampled(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Null elements of a mask become True, as in the ``tokens`` view."""
    return pa.chunked_array([_filled(chunk) for chunk in column.chunks], type=column.type)


def _filled(chunk: pa.ListArray) -> pa.ListArray:
    if not chunk.values.null_count:
        return chunk
    offsets, missing = pa.array(np.asarray(chunk.offsets)), pa.array(~np.asarray(chunk.is_valid()))
    return pa.ListArray.from_arrays(offsets, pc.fill_null(chunk.values, True), mask=missing)
