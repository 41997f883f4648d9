"""The routing pass: which experts two policy evaluations chose for the same token and layer, and what the differences go with.

Rows are aligned on absolute position (0 is the prompt's first token) through ``first_position`` and on absolute layer through
``layer_ids``; only what both sides have is compared. The log-probability of response token j comes from the forward pass of the token
before it, at absolute position (prompt length + j - 1): that position's routing is the one joined with token j's Δ.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from rlaudit import schema
from rlaudit.analyzers import routing_kernel as rk
from rlaudit.analyzers.compiled import Kernels
from rlaudit.analyzers.grouping import OTHER, ROLLOUT, TRAINER, UNKNOWN, UPDATE, Group, Steps
from rlaudit.analyzers.pairing import EXAMPLES, Spans
from rlaudit.analyzers.routing_rows import SOURCE_NAMES, InvalidBlob, RoutingRows, broken_rows, chunks_of, expected_bytes
from rlaudit.run import Run

Array = Any


@dataclass(slots=True)
class RoutingPass:
    """What one comparison of routings comes to, at equal policy version.

    layers: (attempt, step, layer) to counts (``routing_kernel`` columns). tokens: (attempt, step) to (token positions compared,
    those with any layer differing). sources: second side's source to sequences. effect[f]: (tokens, Σ|Δ|, Σk3) of response tokens
    whose forward had no (0) or some (1) layer differing.
    """

    layers: dict[tuple[int, int, int], Array] = field(default_factory=dict)
    tokens: dict[tuple[int, int], Array] = field(default_factory=dict)
    effect: Array = field(default_factory=lambda: np.zeros((2, 3)))
    sources: dict[str, int] = field(default_factory=dict)
    sequences: int = 0
    joined: int = 0
    other_version: int = 0
    unknown_version: int = 0
    different_shape: int = 0
    without_sequence: int = 0
    in_parts: int = 0
    invalid_blobs: list[InvalidBlob] = field(default_factory=list)
    invalid_blob_count: int = 0

    def add(self, other: RoutingPass) -> None:
        """Take in another group of steps."""
        for mine, theirs in ((self.layers, other.layers), (self.tokens, other.tokens)):
            for key, counts in theirs.items():
                mine[key] = mine[key] + counts if key in mine else counts  # type: ignore[index]
        self.effect = self.effect + other.effect
        for name in (
            "sequences",
            "joined",
            "other_version",
            "unknown_version",
            "different_shape",
            "without_sequence",
            "in_parts",
            "invalid_blob_count",
        ):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for source, count in other.sources.items():
            self.sources[source] = self.sources.get(source, 0) + count
        self.invalid_blobs = (self.invalid_blobs + other.invalid_blobs)[:EXAMPLES]

    def by_layer(self) -> dict[int, Array]:
        """Counts of every layer over the run."""
        found: dict[int, Array] = {}
        for (_, _, layer), counts in sorted(self.layers.items()):
            found[layer] = found[layer] + counts if layer in found else counts.copy()
        return found

    def total(self) -> Array:
        """Counts over all layers and steps."""
        return sum(self.layers.values(), np.zeros(rk.LAYER_COUNTS, np.int64))

    def total_tokens(self) -> tuple[int, int]:
        """Token positions compared, and those with any layer differing."""
        positions, differing = sum(self.tokens.values(), np.zeros(2, np.int64))
        return int(positions), int(differing)


class _Item(NamedTuple):
    """Two rows to compare on the absolute positions [low, high)."""

    sequence: int
    a: int
    b: int
    low: int
    high: int


ROLLOUT_TRAINER = ((ROLLOUT,), (TRAINER, UPDATE))
TRAINER_UPDATE = ((TRAINER,), (UPDATE,))
Sources = tuple[tuple[int, ...], tuple[int, ...]]
"""The two sides, each a preference order of sources; within a source the first update counts."""


def measure_routing(
    run: Run, kernels: Kernels, group: Group, steps: Steps, comparisons: dict[str, tuple[Sources, Spans]]
) -> dict[tuple[str, str], RoutingPass]:
    """Compare the routings of one group of steps.

    comparisons: name to the two sides and the token spans to which the effect on |Δ| is attributed. The result is keyed by that
    name and by lag class (``equal``, ``unknown``); other versions are counted under ``equal``.
    """
    found = {(name, lag): RoutingPass() for name in comparisons for lag in ("equal", "unknown")}
    for rows in chunks_of(run, group, steps):
        broken = broken_rows(group, rows)
        for name, (sides, spans) in comparisons.items():
            equal = found[name, "equal"]
            equal.invalid_blobs, equal.invalid_blob_count = (
                (equal.invalid_blobs + broken)[:EXAMPLES],
                equal.invalid_blob_count + len(broken),
            )
            equal.without_sequence += int((rows.sequence < 0).sum())
            equal.in_parts += int((rows.parts > 1).sum())
            items = _items(group, rows, sides, found, name)
            for lag, chosen in items.items():
                _compare(kernels, group, rows, chosen, spans, lag, found[name, lag])
    return found


def _items(group: Group, rows: RoutingRows, sides: Sources, found: dict[tuple[str, str], RoutingPass], name: str) -> dict[str, list[_Item]]:
    """What to compare, by lag class; counts what joins and what does not."""
    a_rows, b_rows = (_chosen(rows, side) for side in sides)
    versions = _versions(group, rows)
    items: dict[str, list[_Item]] = {"equal": [], "unknown": []}
    for sequence in sorted(a_rows.keys() | b_rows.keys()):
        if not group.train[sequence]:
            continue
        found[name, "equal"].sequences += 1
        pairs = [
            (a, b)
            for a in a_rows.get(sequence, ())
            for b in b_rows.get(sequence, ())
            if rows.size[a] == expected_bytes(rows, a) and rows.size[b] == expected_bytes(rows, b)
        ]
        for a, b in pairs:
            updates = int(versions[a]), int(versions[b])
            lag = "unknown" if UNKNOWN in updates else "equal" if updates[0] == updates[1] else "other"
            low, high = max(rows.first[a], rows.first[b]), min(rows.first[a] + rows.tokens[a], rows.first[b] + rows.tokens[b])
            if lag == "other":
                found[name, "equal"].other_version += 1
            elif rows.top_k[a] != rows.top_k[b] or rows.num_experts[a] != rows.num_experts[b]:
                found[name, "equal"].different_shape += 1
            elif high > low and set(rows.layers[a]) & set(rows.layers[b]):
                found[name, "equal"].unknown_version += lag == "unknown"
                items[lag].append(_Item(sequence, a, b, int(low), int(high)))
    return items


def _versions(group: Group, rows: RoutingRows) -> Array:
    """Optimizer steps behind each row's weights: its own, otherwise its evaluation's by the log-probabilities, where those agree."""
    scored = np.flatnonzero((group.row_sequence >= 0) & (group.updates != UNKNOWN))
    low = np.full((len(group.step), OTHER + 1), np.iinfo(np.int64).max)
    high = np.full(low.shape, UNKNOWN)
    place = group.row_sequence[scored], group.source[scored]
    np.minimum.at(low, place, group.updates[scored])
    np.maximum.at(high, place, group.updates[scored])
    single = np.where(low == high, high, UNKNOWN)
    known = np.where(rows.sequence >= 0, single[rows.sequence.clip(0), rows.source], UNKNOWN) if len(group.step) else rows.updates
    return np.where(rows.updates != UNKNOWN, rows.updates, known)


def _chosen(rows: RoutingRows, side: tuple[int, ...]) -> dict[int, list[int]]:
    """The rows of each sequence's best evaluation on one side: first source in ``side``, then first update. All its parts; without one
    that lacks some."""
    best: dict[int, tuple[int, int]] = {}
    held: dict[int, list[int]] = {}
    for row in range(len(rows.sequence)):
        sequence, source = int(rows.sequence[row]), int(rows.source[row])
        if sequence < 0 or source not in side:
            continue
        rank = (side.index(source), int(rows.update[row]))
        if sequence not in best or rank < best[sequence]:
            best[sequence], held[sequence] = rank, [row]
        elif rank == best[sequence]:
            held[sequence].append(row)
    return {sequence: own for sequence, own in held.items() if len(own) >= rows.parts[own[0]]}


def _compare(kernels: Kernels, group: Group, rows: RoutingRows, items: list[_Item], spans: Spans, lag: str, found: RoutingPass) -> None:
    """Run the kernel on ``items`` and add to ``found``."""
    if not items:
        return
    layouts: dict[tuple[Any, ...], list[_Item]] = {}
    for item in items:
        place = int(group.attempt[item.sequence]), int(group.step[item.sequence])
        chunks = int(rows.chunk[item.a]), int(rows.chunk[item.b])
        layout = rows.layers[item.a], rows.layers[item.b], int(rows.top_k[item.a]), int(rows.num_experts[item.a])
        layouts.setdefault((place, chunks, *layout), []).append(item)
    flags: dict[int, tuple[int, Array]] = {}  # sequence to its first absolute position and its tokens' flags
    sources = {item.sequence: int(rows.source[item.b]) for item in items}
    for (place, _, layers_a, layers_b, top_k, num_experts), members in layouts.items():
        common = [layer for layer in layers_a if layer in layers_b]
        counts = np.zeros((len(common), rk.LAYER_COUNTS), np.int64)
        for item, item_flags in zip(
            members, _run(kernels, rows, members, layers_a, layers_b, common, top_k, num_experts, counts), strict=True
        ):
            flags[item.sequence] = _merge_flags(flags.get(item.sequence), (item.low, item_flags))
        for layer, row in zip(common, counts, strict=True):
            key = (*place, layer)
            found.layers[key] = found.layers.get(key, 0) + row
    found.joined += len(flags)
    for source in sources.values():
        found.sources[SOURCE_NAMES[source]] = found.sources.get(SOURCE_NAMES[source], 0) + 1
    for sequence, (_, own) in flags.items():
        key = (int(group.attempt[sequence]), int(group.step[sequence]))
        found.tokens[key] = found.tokens.get(key, 0) + np.array([(own != rk.UNKNOWN).sum(), (own == rk.DIFFERS).sum()], np.int64)
    _attribute(group, flags, sources, spans, lag, found)


def _run(
    kernels: Kernels,
    rows: RoutingRows,
    items: list[_Item],
    layers_a: tuple[int, ...],
    layers_b: tuple[int, ...],
    common: list[int],
    top_k: int,
    num_experts: int,
    counts: Array,
) -> list[Array]:
    """Flags of each item's tokens (items of equal layout and chunks); adds to ``counts``."""
    wide = schema.expert_bytes(num_experts)
    row_a, row_b = len(layers_a) * top_k * wide, len(layers_b) * top_k * wide
    tokens = np.array([item.high - item.low for item in items], np.int64)
    start_a = np.array([rows.start[item.a] + (item.low - rows.first[item.a]) * row_a for item in items], np.int64)
    start_b = np.array([rows.start[item.b] + (item.low - rows.first[item.b]) * row_b for item in items], np.int64)
    data_a, data_b = rows.data[rows.chunk[items[0].a]], rows.data[rows.chunk[items[0].b]]
    kernel = kernels.overlap_bytes if top_k <= 8 else kernels.overlap_any
    if wide == 2:  # blobs may lie at odd bytes: copied into an aligned array
        data_a, start_a = _aligned(data_a, start_a, tokens * row_a)
        data_b, start_b = _aligned(data_b, start_b, tokens * row_b)
        kernel = kernels.overlap_any
    flag_start = np.cumsum(tokens) - tokens
    flags = np.empty(int(tokens.sum()), np.int8)
    slots = (np.array([layers.index(layer) for layer in common], np.int64) for layers in (layers_a, layers_b))
    kernel(data_a, data_b, start_a, start_b, tokens, len(layers_a), len(layers_b), *slots, top_k, num_experts, counts, flags, flag_start)
    return np.split(flags, flag_start[1:])


def _aligned(data: Array, start: Array, size: Array) -> tuple[Array, Array]:
    """The given byte ranges one after the other as uint16, and their starts in it."""
    pieces = np.concatenate([data[s : s + n] for s, n in zip(start, size, strict=True)])
    return pieces.view("<u2"), (np.cumsum(size) - size) // 2


def _merge_flags(held: tuple[int, Array] | None, more: tuple[int, Array]) -> tuple[int, Array]:
    """Flags of a sequence whose layers or tokens lie in several rows: differs beats unknown beats same, on the union of positions."""
    if held is None:
        return more
    low = min(held[0], more[0])
    high = max(held[0] + len(held[1]), more[0] + len(more[1]))
    rank = np.zeros(high - low, np.int8)  # 0 uncovered, 1 same, 2 unknown, 3 differs
    for first, flags in (held, more):
        part = rank[first - low :][: len(flags)]
        np.maximum(part, np.where(flags == rk.DIFFERS, 3, np.where(flags == rk.UNKNOWN, 2, 1)).astype(np.int8), out=part)
    return low, np.array([rk.UNKNOWN, rk.SAME, rk.UNKNOWN, rk.DIFFERS], np.int8)[rank]


def _attribute(
    group: Group, flags: dict[int, tuple[int, Array]], sources: dict[int, int], spans: Spans, lag: str, found: RoutingPass
) -> None:
    """Add the |Δ| of response tokens by whether the forward that scored them routed differently in any layer.

    Only where routing and log-probability come from the same evaluation: ``sources`` is the routing's, by sequence.
    """
    same = np.array(
        [sources.get(sequence) == source for sequence, source in zip(spans.sequence.tolist(), spans.b_source.tolist(), strict=True)], bool
    )
    chosen = np.flatnonzero(same & (spans.lag == (0 if lag == "equal" else UNKNOWN)))
    if len(chosen) == 0:
        return
    spans = Spans(*(column[chosen] for column in spans))
    pieces = []
    for sequence, offset, length in zip(spans.sequence.tolist(), spans.offset.tolist(), spans.length.tolist(), strict=True):
        piece = np.full(length, rk.UNKNOWN, np.int8)
        first, own = flags[sequence]
        if group.prompt[sequence] >= 0:
            shift = int(group.prompt[sequence]) - 1 + offset - first  # own[shift + j] belongs to the span's token j
            low, high = max(0, -shift), min(length, len(own) - shift)
            if high > low:
                piece[low:high] = own[low + shift : high + shift]
        pieces.append(piece)
    logprobs, missing, sampled = group.tokens.logprobs, group.tokens.missing, group.tokens.sampled
    for a, b, mask, length, piece in zip(
        spans.a_start.tolist(), spans.b_start.tolist(), spans.mask_start.tolist(), spans.length.tolist(), pieces, strict=True
    ):
        d = logprobs[b : b + length].astype(np.float64) - logprobs[a : a + length]
        usable = np.isfinite(d) & (piece != rk.UNKNOWN)
        if missing is not None:
            usable &= ~(missing[a : a + length] | missing[b : b + length])
        if sampled is not None and mask >= 0:
            usable &= sampled[mask : mask + length]
        for flag in (rk.SAME, rk.DIFFERS):
            mine = d[usable & (piece == flag)]
            found.effect[flag] += len(mine), np.abs(mine).sum(), (np.expm1(mine) - mine).sum()
