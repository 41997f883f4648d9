"""Rows that follow from other rows of a run: links found by content, and engines' log-probabilities as scores of sequences.

They are kept as ordinary segments whose name carries a digest of the names of the segments that they were made from. Where those have
changed (a merge, a compaction, another attempt, capture still going on) they no longer count, and are made anew when the run is read.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from rlaudit.arrow import arrow_schema
from rlaudit.linking import Found, find_links
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
    "output_tokens",
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
_CARRIED = ("logprob_mode", "temperature", "dtype", "weight_dtype", "backend", "host", "rank", "process")
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
    itself, otherwise ``engine``."""
    by_sequence: dict[Key, list[dict[str, Any]]] = defaultdict(list)
    for link in links.to_pylist():
        by_sequence[link["attempt"], link["step"], link["sequence_id"]].append(link)
    if not by_sequence:
        return
    lengths = _response_lengths(run)
    scored = _scored(run)
    updates = WeightVersions.of(run)
    keys = sorted(key for key in by_sequence if key in lengths)
    for place in range(0, len(keys), BATCH):
        batch = keys[place : place + BATCH]
        calls = _calls(run, {link["request_id"] for key in batch for link in by_sequence[key]})
        rows = []
        for key in batch:
            source = "engine" if key in scored else "rollout"
            rows += _scores(key, lengths[key], source, by_sequence[key], calls, updates)
        if rows:
            writer.write(pa.Table.from_pylist(rows, schema=arrow_schema("scores")))


def _response_lengths(run: Run) -> dict[Key, int]:
    rows = run.read("sequences", ("attempt", "step", "sequence_id", "response_length"))
    columns = [rows[name].to_pylist() for name in ("attempt", "step", "sequence_id", "response_length")]
    return {(a, s, name): length for a, s, name, length in zip(*columns, strict=True) if length}


def _scored(run: Run) -> set[Key]:
    rows = run.read("scores", ("attempt", "step", "sequence_id"), filters=pc.field("source") == "rollout")
    return set(zip(*(rows[name].to_pylist() for name in ("attempt", "step", "sequence_id")), strict=True))


def _calls(run: Run, wanted: set[str]) -> dict[tuple[int, str], dict[str, Any]]:
    rows = run.read("requests", _REQUEST, filters=pc.field("request_id").isin(sorted(wanted)) & pc.field("logprobs").is_valid())
    return {(row["attempt"], row["request_id"]): row for row in rows.to_pylist()}


def _scores(
    key: Key, length: int, source: str, links: list[dict[str, Any]], calls: dict[tuple[int, str], dict[str, Any]], versions: WeightVersions
) -> list[dict[str, Any]]:
    """Rows that cover the response from 0 to its end: one for each stretch of one call and one policy version, nulls in between."""
    stretches: list[tuple[int, int, dict[str, Any] | None, dict[str, Any], int]] = []
    covered = 0
    for link in sorted(links, key=lambda link: link["start"]):
        call = calls.get((link["attempt"], link["request_id"]))
        if call is None or link["start"] < covered:
            continue
        end = min(length, link["start"] + len(call["logprobs"]), length if link["end"] is None else link["end"])
        if end <= link["start"]:
            continue
        if link["start"] > covered:
            stretches.append((covered, link["start"], None, {}, 0))
        for low, high, version in _spans(call, end - link["start"]):
            stretches.append((link["start"] + low, link["start"] + high, call, version, low))
        covered = end
    if not stretches:
        return []
    if covered < length:
        stretches.append((covered, length, None, {}, 0))
    attempt, step, sequence_id = key
    rows = []
    for low, high, call, version, offset in stretches:
        row = {
            "attempt": attempt,
            "step": step,
            "sequence_id": sequence_id,
            "source": source,
            "update": 0,
            "first_position": low,
            "parts": len(stretches),
            "logprobs": [None] * (high - low),
            "forward": "decode",
        }
        if call is not None:
            row |= {name: call[name] for name in _CARRIED}
            if call["logprob_mode"] == "raw":
                row["temperature"] = 1.0  # the call sampled at its temperature; these numbers are from before it
            row |= {"logprobs": call["logprobs"][offset : offset + high - low], "policy_syncs": call["policy_syncs"], **version}
            if row["policy_updates"] is None:
                row["policy_updates"] = versions.updates(attempt, row["policy_version"], call["policy_syncs"])
        rows.append(row)
    return rows


def _spans(call: dict[str, Any], length: int) -> list[tuple[int, int, dict[str, Any]]]:
    """The call's output [0, length) by policy version."""
    own = {"policy_version": call["policy_version"], "policy_updates": call["policy_updates"]}
    spans = call["version_spans"]
    if not spans:
        return [(0, length, own)]
    found = []
    for span in spans:
        low, high = max(0, span["start"]), min(length, span["end"])
        if low < high:
            found.append((low, high, {"policy_version": span["version"], "policy_updates": span["updates"]}))
    covers = found and found[0][0] == 0 and found[-1][1] == length and all(a[1] == b[0] for a, b in pairwise(found))
    return found if covers else [(0, length, own)]
