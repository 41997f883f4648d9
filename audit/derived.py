"""Rows that follow from other rows of a run: links found by content, and engines' log-probabilities as scores of sequences.

They are kept as ordinary segments whose name carries a digest of the names of the segments that they were made from. Where those have
changed (a merge, a compaction, another attempt, capture still going on) they no longer count, and are made anew when the run is read.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rlaudit.arrow import arrow_schema
from rlaudit.linking import Found, find_links
from rlaudit.lists import list_column, nulls
from rlaudit.segments import Segment, SegmentWriter
from rlaudit.versions import WeightVersions

if TYPE_CHECKING:
    from rlaudit.run import Run

PREFIX = "derived-"
"""Head of the process name of derived segments."""
SOURCES = ("sequences", "requests", "links", "scores", "weights")
"""What derived rows follow from."""
BATCH = 1024

_REQUEST = (
    "attempt",
    "request_id",
    "logprobs",
    "logprob_mode",
    "policy_version",
    "policy_updates",
    "policy_syncs",
    "version_spans",
    "temperature",
    "dtype",
    "weight_dtype",
    "backend",
    "host",
    "rank",
    "process",
)
Array = Any
_CARRIED = ("policy_syncs", "logprob_mode", "temperature", "dtype", "weight_dtype", "backend", "host", "rank", "process")
Key = tuple[int, int, str]


def process_name(segments: Iterable[Segment]) -> str:
    """The process name of what is derived from ``segments``."""
    names = sorted(f"{s.table}/{s.path.rsplit('/', 1)[-1]}" for s in segments)
    return PREFIX + hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]


def is_derived(segment: Segment) -> bool:
    """True for segments that were derived from others."""
    return segment.process.startswith(PREFIX)


def derive(run: Run, folder: Path, process: str) -> list[Segment]:
    """Write what follows from ``run``'s recorded rows as segments below ``folder``; all links, recorded ones too, are among them."""
    links = _all_links(run)
    writers = [SegmentWriter(folder, "links", process, 0), SegmentWriter(folder, "scores", process, 0)]
    try:
        if links.num_rows:
            writers[0].write(links)
        _write_scores(run, links, writers[1])
        return [segment for writer in writers if (segment := writer.close()) is not None]
    except BaseException:
        for writer in writers:
            writer.abandon()
        raise


def _all_links(run: Run) -> pa.Table:
    """Recorded and found links, with alignment and the extent of their routing."""
    recorded = run.read("links").to_pylist()
    known = {(link["attempt"], link["request_id"]) for link in recorded}
    found = [_row(link) for link in find_links(run, known)]
    by_sequence: dict[Key, list[dict[str, Any]]] = defaultdict(list)
    for link in (*recorded, *found):
        by_sequence[link["attempt"], link["step"], link["sequence_id"]].append(link)
    prompts = _prompt_lengths(run) if by_sequence else {}
    for key, links in by_sequence.items():
        _order(links, prompts.get(key))
    if recorded:
        _align(run, [link for link in recorded if link["aligned"] is None])
    rows = [link for links in by_sequence.values() for link in links]
    for link in rows:
        if link["aligned"] is False:
            link["routing_from"] = None
    return pa.Table.from_pylist(rows, schema=arrow_schema("links"))


def _row(link: Found) -> dict[str, Any]:
    return {**link._asdict(), "turn": None}


def _order(links: list[dict[str, Any]], prompt: int | None) -> None:
    """Number the turns that nobody numbered and say from where each call's routing counts."""
    links.sort(key=lambda link: (link["start"], link["end"] if link["end"] is not None else link["start"]))
    starts = sorted({link["start"] for link in links})
    ends = [0]
    for link in links:
        if link["turn"] is None:
            link["turn"] = starts.index(link["start"])
        before = max((end for end in ends if end <= link["start"]), default=0)
        if prompt is not None:
            # The call that ended at ``before`` has rows up to the token before its last one; the first call has the prompt's rows.
            link["routing_from"] = prompt + before - 1 if before > 0 else 0
        if link["end"] is not None:
            ends.append(link["end"])


def _prompt_lengths(run: Run) -> dict[Key, int]:
    rows = run.read("sequences", ("attempt", "step", "sequence_id", "prompt_length"))
    columns = [rows[name].to_pylist() for name in ("attempt", "step", "sequence_id", "prompt_length")]
    return {(attempt, step, name): length for attempt, step, name, length in zip(*columns, strict=True)}


def _align(run: Run, links: list[dict[str, Any]]) -> None:
    """Look whether the inputs of framework-made links are the sequences' own tokens."""
    for place in range(0, len(links), BATCH):
        batch = links[place : place + BATCH]
        given = _rows(run, "requests", "input_tokens", ("attempt", "request_id"), batch)
        texts = _rows(run, "sequences", "prompt_tokens", ("attempt", "step", "sequence_id"), batch)
        responses = _rows(run, "sequences", "response_tokens", ("attempt", "step", "sequence_id"), batch)
        for link in batch:
            key = link["attempt"], link["step"], link["sequence_id"]
            own, prompt, response = given.get((link["attempt"], link["request_id"])), texts.get(key), responses.get(key)
            if own is not None and prompt is not None and response is not None:
                link["aligned"] = own == [*prompt, *response[: link["start"]]]


def _rows(run: Run, table: str, column: str, key: tuple[str, ...], links: list[dict[str, Any]]) -> dict[Any, Any]:
    last = key[-1]
    rows = run.read(table, (*key, column), filters=pc.field(last).isin(sorted({link[last] for link in links})))
    return dict(zip(zip(*(rows[name].to_pylist() for name in key), strict=True), rows[column].to_pylist(), strict=True))


def _write_scores(run: Run, links: pa.Table, writer: SegmentWriter) -> None:
    """Scores of the sequences that calls with log-probabilities are linked to: source ``rollout`` where the trainer recorded none
    itself, otherwise ``engine``. Reads every segment of ``requests`` once; holds the calls of sequences that are not complete yet."""
    by_sequence: dict[Key, list[dict[str, Any]]] = defaultdict(list)
    by_call: dict[tuple[int, str], list[Key]] = defaultdict(list)
    for link in links.to_pylist():
        key = (link["attempt"], link["step"], link["sequence_id"])
        by_sequence[key].append(link)
        by_call[link["attempt"], link["request_id"]].append(key)
    if not by_sequence:
        return
    lengths, scored, versions = _response_lengths(run), _scored(run), WeightVersions.of(run)
    calls: dict[tuple[int, str], _Call] = {}
    awaited = {key: len({(link["attempt"], link["request_id"]) for link in own}) for key, own in by_sequence.items()}

    def emit(keys: Iterable[Key]) -> None:
        stretches: list[_Stretch] = []
        for key in keys:
            if key in lengths:
                source = "engine" if key in scored else "rollout"
                stretches += _stretches(key, lengths[key], source, by_sequence[key], calls, versions)
        if stretches:
            writer.write(_table(stretches))

    for segment in run.segments("requests"):
        complete = []
        for name, call in _read_calls(run, segment, by_call):
            calls[name] = call
            for key in by_call[name]:
                awaited[key] -= 1
                if awaited[key] == 0:
                    complete.append(key)
                    del awaited[key]
        emit(complete)
        for name in list(calls):
            if not any(key in awaited for key in by_call[name]):
                del calls[name]
    emit(sorted(awaited))


def _response_lengths(run: Run) -> dict[Key, int]:
    rows = run.read("sequences", ("attempt", "step", "sequence_id", "response_length"))
    columns = [rows[name].to_pylist() for name in ("attempt", "step", "sequence_id", "response_length")]
    return {(a, s, name): length for a, s, name, length in zip(*columns, strict=True) if length}


def _scored(run: Run) -> set[Key]:
    rows = run.read("scores", ("attempt", "step", "sequence_id"), filters=pc.field("source") == "rollout")
    return set(zip(*(rows[name].to_pylist() for name in ("attempt", "step", "sequence_id")), strict=True))


class _Call(NamedTuple):
    """A call with log-probabilities: float32 values, which of them are missing (None: none) and its other columns."""

    logprobs: Array
    missing: Array | None
    facts: dict[str, Any]


class _Stretch(NamedTuple):
    """One row of ``scores`` to be: response positions [low, high) of one call and one policy version. logprobs is None in a gap."""

    key: Key
    source: str
    low: int
    high: int
    logprobs: Array | None
    missing: Array | None
    facts: dict[str, Any]


def _read_calls(run: Run, segment: Segment, wanted: dict[tuple[int, str], list[Key]]) -> Iterator[tuple[tuple[int, str], _Call]]:
    rows = run.read_segment(segment, _REQUEST)
    names = list(zip(rows["attempt"].to_pylist(), rows["request_id"].to_pylist(), strict=True))
    chosen = [name in wanted for name in names]
    rows, names = rows.filter(pa.array(chosen, pa.bool_())), [name for name in names if name in wanted]
    lists = list_column(rows["logprobs"])
    absent = nulls(lists)
    for i, (name, facts) in enumerate(zip(names, rows.drop_columns(["logprobs"]).to_pylist(), strict=True)):
        start, stop = int(lists.start[i]), int(lists.start[i] + max(0, lists.length[i]))
        yield name, _Call(lists.values[start:stop], None if absent is None else absent[start:stop], facts)


def _stretches(
    key: Key, length: int, source: str, links: list[dict[str, Any]], calls: dict[tuple[int, str], _Call], versions: WeightVersions
) -> list[_Stretch]:
    """Rows that cover the response from 0 to its end: one for each stretch of one call and one policy version, gaps in between."""
    found: list[_Stretch] = []
    covered = 0
    for link in sorted(links, key=lambda link: int(link["start"])):
        call = calls.get((link["attempt"], link["request_id"]))
        start = int(link["start"])
        if call is None or start < covered:
            continue
        end = min(length, start + len(call.logprobs), length if link["end"] is None else link["end"])
        if end <= start:
            continue
        if start > covered:
            found.append(_Stretch(key, source, covered, start, None, None, {}))
        for low, high, version in _spans(call.facts, end - start):
            facts = {name: call.facts[name] for name in _CARRIED} | version
            if facts["logprob_mode"] == "raw":
                facts["temperature"] = 1.0  # the call sampled at its temperature; these numbers are from before it
            if facts["policy_updates"] is None:
                facts["policy_updates"] = versions.updates(key[0], facts["policy_version"], facts["policy_syncs"])
            missing = None if call.missing is None else call.missing[low:high]
            found.append(_Stretch(key, source, start + low, start + high, call.logprobs[low:high], missing, facts))
        covered = end
    if found and covered < length:
        found.append(_Stretch(key, source, covered, length, None, None, {}))
    return [stretch._replace(facts={**stretch.facts, "parts": len(found)}) for stretch in found]


def _spans(call: dict[str, Any], length: int) -> list[tuple[int, int, dict[str, Any]]]:
    """The call's output [0, length) by policy version."""
    own = {"policy_version": call["policy_version"], "policy_updates": call["policy_updates"]}
    found = []
    for span in call["version_spans"] or ():
        low, high = max(0, span["start"]), min(length, span["end"])
        if low < high:
            found.append((low, high, {"policy_version": span["version"], "policy_updates": span["updates"]}))
    covers = found and found[0][0] == 0 and found[-1][1] == length and all(a[1] == b[0] for a, b in pairwise(found))
    return found if covers else [(0, length, own)]


def _table(stretches: list[_Stretch]) -> pa.Table:
    """The rows of ``scores``."""
    target = arrow_schema("scores")
    size = np.array([stretch.high - stretch.low for stretch in stretches], np.int32)
    offsets = np.zeros(len(size) + 1, np.int32)
    np.cumsum(size, out=offsets[1:])
    values, missing = np.zeros(int(offsets[-1]), np.float32), np.zeros(int(offsets[-1]), bool)
    for stretch, at, end in zip(stretches, offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        if stretch.logprobs is None:
            missing[at:end] = True
            continue
        values[at:end] = stretch.logprobs
        if stretch.missing is not None:
            missing[at:end] = stretch.missing
    logprobs = pa.ListArray.from_arrays(pa.array(offsets), pa.array(values, mask=missing), type=target.field("logprobs").type)
    fixed: dict[str, list[Any]] = {
        "attempt": [stretch.key[0] for stretch in stretches],
        "step": [stretch.key[1] for stretch in stretches],
        "sequence_id": [stretch.key[2] for stretch in stretches],
        "source": [stretch.source for stretch in stretches],
        "update": [0] * len(stretches),
        "first_position": [stretch.low for stretch in stretches],
        "forward": ["decode"] * len(stretches),
    }
    columns = []
    for field in target:
        if field.name == "logprobs":
            columns.append(logprobs)
        elif field.name in fixed:
            columns.append(pa.array(fixed[field.name], field.type))
        else:
            columns.append(pa.array([stretch.facts.get(field.name) for stretch in stretches], field.type))
    return pa.Table.from_arrays(columns, schema=target)
