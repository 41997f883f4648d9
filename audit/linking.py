"""Which engine call produced which part of which sequence, found by content.

Engines know neither step nor sequence. A call belongs to a sequence where the sequence's prompt and response begin with the call's input
and output: that covers single turns, several turns, partial rollouts that were resumed and n samples of one call. What differs is looked
for with less: equal input and the same beginning of the output (a stripped stop token, truncation), then an equal output where a sampled
span begins (a prompt or a history that was tokenised anew). Nothing is taken because it came first: equal candidates are marked ambiguous.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rlaudit.lists import ListColumn, list_column
from rlaudit.prefix_hashes import Powers, Prefixes, concatenated, keyed

if TYPE_CHECKING:
    from rlaudit.run import Run

Array = Any
SHORTEST = 3
"""Tokens that an output must have to be found by itself: shorter ones are everywhere."""
_REQUESTS = ("attempt", "request_id", "step", "phase", "started", "input_tokens", "output_tokens")
_SEQUENCES = ("attempt", "step", "sequence_id", "prompt_tokens", "response_tokens", "sampled_mask")


class Found(NamedTuple):
    """One link that was found. start, end: response positions. aligned: the call's input is the sequence's tokens before ``start``."""

    attempt: int
    step: int
    sequence_id: str
    request_id: str
    start: int
    end: int
    method: str
    ambiguous: bool
    aligned: bool


class _Calls(NamedTuple):
    """The calls to place, one entry each, in the order in which they were made. step is -1 where unknown."""

    attempt: Array
    ids: list[str]
    step: Array
    input_length: Array
    output_length: Array
    whole: Array
    given: Array
    returned: Array


class _Sequence(NamedTuple):
    """A recorded sequence: its key, where its prompt ends, how long the response is and where sampled spans begin and end."""

    attempt: int
    step: int
    sequence_id: str
    prompt: int
    response: int
    spans: tuple[tuple[int, int], ...]


def find_links(run: Run, known: set[tuple[int, str]]) -> list[Found]:
    """Links of the calls that ``known`` (attempt, request id) doesn't name. Reads the token lists of ``requests`` and ``sequences``
    a segment at a time; keeps a few dozen bytes a call and sequence."""
    powers = Powers()
    calls = _read_calls(run, known, powers)
    if not calls.ids:
        return []
    placed = _Placement(calls)
    for prompts, responses, sequences in _read_sequences(run, powers):
        placed.offer("content", sequences, _exact(calls, prompts, responses, powers, _span_ends(sequences)))
    placed.settle("content")
    if placed.left():  # calls that end within a sampled span: partial rollouts that others went on with
        for prompts, responses, sequences in _read_sequences(run, powers, placed.open_sequences()):
            placed.offer("content", sequences, _exact(calls, prompts, responses, powers, _everywhere(responses)))
        placed.settle("content")
    if placed.left() and placed.open_sequences():
        open_ids = placed.open_sequences()
        for prompts, responses, sequences in _read_sequences(run, powers, open_ids):
            placed.offer("content/prefix", sequences, _begun(calls, prompts, responses, powers, placed.left()))
        _settle_by_tokens(run, placed)
        for _, responses, sequences in _read_sequences(run, powers, placed.open_sequences()):
            placed.offer("content/output", sequences, _returned(calls, sequences, responses, placed.left()))
        placed.settle("content/output")
    return placed.links()


def _read_calls(run: Run, known: set[tuple[int, str]], powers: Powers) -> _Calls:
    columns: dict[str, list[Array]] = defaultdict(list)
    ids: list[str] = []
    for segment in run.segments("requests"):
        rows = run.read_segment(segment, _REQUESTS)
        wanted = [
            (attempt, name) not in known and phase in (None, "train")
            for attempt, name, phase in zip(*(rows[c].to_pylist() for c in ("attempt", "request_id", "phase")), strict=True)
        ]
        rows = rows.filter(pa.array(wanted, pa.bool_()))
        rows = rows.filter(pc.greater(pc.fill_null(pc.list_value_length(rows["output_tokens"]), 0), 0))
        given, returned = (Prefixes(list_column(rows[name]), powers) for name in ("input_tokens", "output_tokens"))
        without_input = ~np.asarray(rows["input_tokens"].is_valid())
        columns["attempt"].append(_integers(rows["attempt"]))
        columns["step"].append(_integers(rows["step"]))
        columns["started"].append(np.asarray(pc.fill_null(rows["started"].cast(pa.int64()), 0)))
        columns["input_length"].append(np.where(without_input, -1, given.length))
        columns["output_length"].append(returned.length)
        columns["given"].append(keyed(given.whole(), given.length))
        columns["returned"].append(keyed(returned.whole(), returned.length))
        whole = concatenated(given.whole(), given.length, returned.whole(), powers)
        columns["whole"].append(keyed(whole, given.length + returned.length))
        ids += rows["request_id"].to_pylist()
    names = ("attempt", "step", "started", "input_length", "output_length", "given", "returned", "whole")
    joined = {name: np.concatenate([np.zeros(0, np.int64), *columns[name]] if not columns[name] else columns[name]) for name in names}
    order = np.argsort(joined.pop("started"), kind="stable")
    return _Calls(ids=[ids[i] for i in order.tolist()], **{name: values[order] for name, values in joined.items()})


def _integers(column: pa.ChunkedArray) -> Array:
    return np.asarray(pc.fill_null(column.cast(pa.int64()), -1))


_Chunk = tuple[Prefixes, Prefixes, list[_Sequence]]


def _read_sequences(run: Run, powers: Powers, only: set[tuple[int, int, str]] | None = None) -> Iterator[_Chunk]:
    if only is not None and not only:
        return
    for segment in run.segments("sequences"):
        rows = run.read_segment(segment, _SEQUENCES)
        keys = list(zip(*(rows[c].to_pylist() for c in ("attempt", "step", "sequence_id")), strict=True))
        if only is not None:
            chosen = [key in only for key in keys]
            rows, keys = rows.filter(pa.array(chosen, pa.bool_())), [key for key in keys if key in only]
        if not keys:
            continue
        prompts, responses = (Prefixes(list_column(rows[name]), powers) for name in ("prompt_tokens", "response_tokens"))
        masks = rows["sampled_mask"] if rows["sampled_mask"].null_count < rows.num_rows else pa.nulls(rows.num_rows, pa.list_(pa.bool_()))
        sequences = [
            _Sequence(
                key[0], key[1], key[2], int(prompts.length[i]), int(responses.length[i]), _sampled_spans(masks[i], int(responses.length[i]))
            )
            for i, key in enumerate(keys)
        ]
        yield prompts, responses, sequences


def _sampled_spans(mask: pa.Scalar, length: int) -> tuple[tuple[int, int], ...]:
    """[start, end) of each run of sampled tokens."""
    if not mask.is_valid:
        return ((0, length),) if length else ()
    flags = np.asarray(pc.fill_null(mask.values, True)).astype(np.int8)
    edges = np.flatnonzero(np.diff(np.concatenate([[0], flags, [0]])))
    return tuple((int(a), int(b)) for a, b in edges.reshape(-1, 2))


class _Candidate(NamedTuple):
    call: int
    row: int
    start: int
    end: int
    aligned: bool


def _by_key(keys: Array) -> dict[int, list[int]]:
    found: dict[int, list[int]] = defaultdict(list)
    for i, key in enumerate(keys.tolist()):
        found[key].append(i)
    return found


_Places = tuple[Array, Array]
"""Rows and response positions."""


def _everywhere(responses: Prefixes) -> _Places:
    """Every row and every position from 0 to the response's length."""
    counts = responses.length + 1
    return np.repeat(np.arange(len(counts)), counts), np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)


def _span_ends(sequences: list[_Sequence]) -> _Places:
    """Where sampled spans end: where a call that nobody interrupted ends too."""
    places = [(row, end) for row, sequence in enumerate(sequences) for _, end in sequence.spans]
    row, end = np.array(places, np.int64).reshape(-1, 2).T
    return row, end


def _response_keys(prompts: Prefixes, responses: Prefixes, powers: Powers, places: _Places) -> Array:
    """Keys of the prompt and the first k response tokens of each row."""
    row, k = places
    prompt_length = prompts.length[row]
    whole = concatenated(prompts.whole()[row], prompt_length, responses.at(row, k), powers)
    return keyed(whole, prompt_length + k)


def _exact(calls: _Calls, prompts: Prefixes, responses: Prefixes, powers: Powers, places: _Places) -> Iterator[_Candidate]:
    """Calls whose input and output together are the beginning of a sequence, and whose output lies in the response."""
    row, k = places
    key = _response_keys(prompts, responses, powers, places)
    usable = calls.input_length >= 0
    hits = np.flatnonzero(np.isin(key, calls.whole[usable]))
    if len(hits) == 0:
        return
    by_key = _by_key(calls.whole)
    for i in hits.tolist():
        for call in by_key[int(key[i])]:
            start = int(calls.input_length[call]) - int(prompts.length[row[i]])
            if usable[call] and start >= 0:
                yield _Candidate(call, int(row[i]), start, int(k[i]), True)


def _begun(calls: _Calls, prompts: Prefixes, responses: Prefixes, powers: Powers, left: set[int]) -> Iterator[_Candidate]:
    """Unplaced calls whose input is the beginning of a sequence; how far the output goes along is seen later."""
    row, k = places = _everywhere(responses)
    key = _response_keys(prompts, responses, powers, places)
    mine = np.array(sorted(call for call in left if calls.input_length[call] >= 0), np.int64)
    hits = np.flatnonzero(np.isin(key, calls.given[mine]))
    by_key = _by_key(calls.given[mine])
    for i in hits.tolist():
        for place in by_key[int(key[i])]:
            call = int(mine[place])
            yield _Candidate(call, int(row[i]), int(k[i]), int(min(k[i] + calls.output_length[call], responses.length[row[i]])), True)


def _returned(calls: _Calls, sequences: list[_Sequence], responses: Prefixes, left: set[int]) -> Iterator[_Candidate]:
    """Unplaced calls whose whole output lies where a sampled span begins."""
    mine = np.array(sorted(call for call in left if calls.output_length[call] >= SHORTEST), np.int64)
    by_key = _by_key(calls.returned[mine])
    lengths = np.unique(calls.output_length[mine])
    for row, sequence in enumerate(sequences):
        for start, end in sequence.spans:
            fitting = lengths[lengths <= end - start]
            same = np.full(len(fitting), row), np.full(len(fitting), start)
            for length, key in zip(fitting.tolist(), keyed(responses.span(*same, fitting), fitting).tolist(), strict=True):
                for place in by_key.get(key, ()):
                    yield _Candidate(int(mine[place]), row, start, start + length, False)


class _Placement:
    """Which candidates are taken: every call at most once, but where several sequences share one; spans of a sequence don't overlap."""

    def __init__(self, calls: _Calls) -> None:
        self._calls = calls
        self._sequences: dict[tuple[int, int, str], _Sequence] = {}
        self._taken: dict[tuple[int, int, str], list[Found]] = defaultdict(list)
        self._used: set[int] = set()
        self.offered: dict[tuple[int, int, int, int], list[tuple[int, tuple[int, int, str]]]] = defaultdict(list)

    def offer(self, method: str, sequences: list[_Sequence], candidates: Iterator[_Candidate]) -> None:
        """Take in the candidates of some sequences. Those with the same span of the same text are one group."""
        for sequence in sequences:
            self._sequences.setdefault((sequence.attempt, sequence.step, sequence.sequence_id), sequence)
        for candidate in candidates:
            sequence = sequences[candidate.row]
            call = candidate.call
            if self._calls.attempt[call] != sequence.attempt or self._calls.step[call] not in (-1, sequence.step):
                continue
            key = (sequence.attempt, sequence.step, sequence.sequence_id)
            if any(candidate.start < link.end and link.start < candidate.end for link in self._taken.get(key, ())):
                continue
            content = self._calls.returned[call] if method == "content/output" else self._calls.whole[call]
            group = (sequence.attempt, int(content), candidate.start, candidate.end)
            self.offered[group].append((call, key))

    def settle(self, method: str) -> None:
        """Decide the offered groups, long spans first: calls and sequences of equal content are paired in order."""
        groups = sorted(self.offered.items(), key=lambda item: item[0][2] - item[0][3])
        self.offered = defaultdict(list)
        for (_, _, start, end), pairs in groups:
            calls = [c for c in dict.fromkeys(call for call, _ in pairs) if c not in self._used]
            keys = sorted(key for key in dict.fromkeys(key for _, key in pairs) if not self._overlaps(key, start, end))
            if not calls or not keys:
                continue
            for i, key in enumerate(keys):
                self.take(calls[i % len(calls)], key, start, end, method, ambiguous=len(calls) > 1)

    def take(self, call: int, key: tuple[int, int, str], start: int, end: int, method: str, *, ambiguous: bool) -> None:
        """Link ``call`` to the span."""
        self._used.add(call)
        aligned = method != "content/output"
        self._taken[key].append(Found(*key, self._calls.ids[call], start, end, method, ambiguous, aligned))

    def _overlaps(self, key: tuple[int, int, str], start: int, end: int) -> bool:
        return any(start < link.end and link.start < end for link in self._taken.get(key, ()))

    def free(self, key: tuple[int, int, str], start: int, end: int) -> bool:
        """True where nothing is linked to this span yet."""
        return not self._overlaps(key, start, end)

    def left(self) -> set[int]:
        """Calls that have no place yet."""
        return set(range(len(self._calls.ids))) - self._used

    def open_sequences(self) -> set[tuple[int, int, str]]:
        """Sequences with sampled tokens that no call covers yet."""
        found = set()
        for key, sequence in self._sequences.items():
            links = self._taken.get(key, [])
            covered = sum(max(0, min(link.end, b) - max(link.start, a)) for link in links for a, b in sequence.spans)
            if covered < sum(b - a for a, b in sequence.spans):
                found.add(key)
        return found

    def call_id(self, call: int) -> tuple[int, str]:
        """Attempt and request id of a call."""
        return int(self._calls.attempt[call]), self._calls.ids[call]

    def links(self) -> list[Found]:
        """All links, by sequence and position."""
        return [link for key in sorted(self._taken) for link in sorted(self._taken[key], key=lambda link: (link.start, link.end))]


def _settle_by_tokens(run: Run, placed: _Placement) -> None:
    """Among calls and sequences with equal input, take those that agree longest, at least over half of the shorter one's tokens."""
    pairs = {(call, key, start) for (_, _, start, _), members in placed.offered.items() for call, key in members}
    placed.offered = defaultdict(list)
    if not pairs:
        return
    outputs = _tokens(run, "requests", "output_tokens", ("attempt", "request_id"), {placed.call_id(call) for call, _, _ in pairs})
    responses = _tokens(run, "sequences", "response_tokens", ("attempt", "step", "sequence_id"), {key for _, key, _ in pairs})
    scored = []
    for call, key, start in pairs:
        output, rest = outputs[placed.call_id(call)], responses[key][start:]
        shared = min(len(output), len(rest))
        differs = np.flatnonzero(output[:shared] != rest[:shared])
        agree = int(differs[0]) if len(differs) else shared
        if shared and 2 * agree >= shared:
            scored.append((agree, call, key, start, start + shared))
    best: dict[tuple[tuple[int, int, str], int], list[int]] = defaultdict(list)
    for agree, _, key, start, _ in scored:
        best[key, start].append(agree)
    for agree, call, key, start, end in sorted(scored, key=lambda item: (-item[0], item[1], item[2])):
        if call in placed.left() and placed.free(key, start, end):
            placed.take(call, key, start, end, "content/prefix", ambiguous=best[key, start].count(agree) > 1)


def _tokens(run: Run, table: str, column: str, key: tuple[str, ...], wanted: set[Any]) -> dict[Any, Array]:
    """Token lists of the rows with these keys."""
    last = key[-1]
    rows = run.read(table, (*key, column), filters=pc.field(last).isin(sorted({item[-1] for item in wanted})))
    lists: ListColumn = list_column(rows[column])
    keys = zip(*(rows[name].to_pylist() for name in key), strict=True)
    return {own: lists.values[lists.start[i] : lists.start[i] + max(0, lists.length[i])] for i, own in enumerate(keys) if own in wanted}
