"""One TRL generation batch: its rows' names, its engine calls, and which call produced which tokens.

Pure bookkeeping on the host. N rows of the local batch, B rows of one engine call, C padded completion width.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

ROW_BITS = 24
"""Row numbers take the low bits of a row label, the batch's number the bits above."""
_numbers = itertools.count()

Tokens = list[int]


@dataclass
class Turn:
    """One engine call of a batch: B prompts in, B completions out.

    sampled, routed: what taps on Hugging Face generate saw (``Sampled``, ``RoutedExperts``); None with other engines.
    """

    number: int
    inputs: list[Tokens]
    started: float
    outputs: list[Tokens] = field(default_factory=list)
    sampled: Any = None
    routed: Any = None
    request_ids: list[str] = field(default_factory=list)


class Evaluation(NamedTuple):
    """Log-probabilities that the trainer computed for the whole batch, on the host: (N, C). routing: a closed window or None."""

    source: str
    logprobs: Any
    entropies: Any
    rows_per_forward: int
    width: int
    routing: Any


@dataclass
class GenerationBatch:
    """What is known of a batch while TRL generates and scores it. ``first_row``: its first row among all ranks' rows."""

    step: int
    phase: str
    rank: int
    group_size: int
    first_row: int = 0
    number: int = field(default_factory=lambda: next(_numbers))
    turns: list[Turn] = field(default_factory=list)
    prompts: list[Tokens] = field(default_factory=list)
    completions: list[Tokens] = field(default_factory=list)
    tool_mask: list[list[int]] | None = None
    rewards: list[float | None] | None = None
    evaluations: list[Evaluation] = field(default_factory=list)

    def sequence_ids(self, rows: Sequence[int]) -> list[str]:
        """Names of rows, unique within a run: rank, batch, row."""
        return [f"r{self.rank}-g{self.number}-{row}" for row in rows]

    def group_ids(self, count: int) -> list[str]:
        """Names of the prompt groups of ``count`` rows: equal on every rank, as groups may straddle ranks."""
        return [f"g{self.number}-{(self.first_row + row) // self.group_size}" for row in range(count)]

    def request_ids(self, turn: int, count: int) -> list[str]:
        """Names of one turn's engine calls."""
        return [f"r{self.rank}-g{self.number}-t{turn}-{request}" for request in range(count)]

    def labels(self, count: int) -> list[int]:
        """Row labels that travel with TRL's tensors through shuffling and splitting; ``from_label`` reads them."""
        return [(self.number << ROW_BITS) | row for row in range(count)]


def from_label(label: int) -> tuple[int, int]:
    """Batch number and row of a row label.

    >>> from_label(GenerationBatch(0, "train", 0, 4, number=5).labels(3)[2])
    (5, 2)
    """
    return label >> ROW_BITS, label & ((1 << ROW_BITS) - 1)


class FinishedBatch(NamedTuple):
    """What later uses of a batch's rows need: its step, and each row's real lengths.

    attended: response tokens that a forward pass attends to; 0 where TRL masked a truncated response whole.
    """

    step: int
    phase: str
    rank: int
    prompt_lengths: list[int]
    lengths: list[int]
    attended: list[int]

    def positions(self, rows: Sequence[int], prompt_width: int, width: int) -> Any:
        """Mask (rows, width) of the real tokens of left-padded prompts followed by right-padded responses."""
        column = np.arange(width)[None, :]
        first = np.array([prompt_width - self.prompt_lengths[row] for row in rows])[:, None]
        last = np.array([prompt_width + self.attended[row] for row in rows])[:, None]
        return (column >= first) & (column < last)


def finish_reason(tokens: Sequence[int], eos_ids: Sequence[int], limit: int | None) -> str | None:
    """stop where the last token ends a sequence, length where the limit was reached, otherwise None (unknown)."""
    if tokens and tokens[-1] in eos_ids:
        return "stop"
    return "length" if limit is not None and len(tokens) >= limit else None


def row_lengths(completion_mask: Any, completions: Sequence[Tokens]) -> list[int]:
    """Real response length of each row.

    TRL zeroes a truncated row's mask whole (``mask_truncated_completions``) though its tokens are real: there the
    token list that the engine returned says how long the row is.
    """
    mask_NC = np.asarray(completion_mask) != 0
    last = np.where(mask_NC.any(axis=1), mask_NC.shape[1] - mask_NC[:, ::-1].argmax(axis=1), 0)
    return [int(end) or (min(len(completions[row]), mask_NC.shape[1]) if row < len(completions) else 0) for row, end in enumerate(last)]


class Link(NamedTuple):
    """Request ``request`` of turn ``turn`` produced response tokens [start, end) of row ``row``."""

    turn: int
    request: int
    row: int
    start: int
    end: int
    method: str
    ambiguous: bool


def sampled_segments(tool_mask: Sequence[int]) -> list[tuple[int, int]]:
    """Spans [start, end) of a response that were sampled, one a turn; zeros in the mask are tool or environment tokens.

    A response that ends in tool tokens ends in an empty span: the call that followed them gave nothing that was kept.

    >>> sampled_segments([1, 1, 0, 0, 1]), sampled_segments([1, 0])
    ([(0, 2), (4, 5)], [(0, 1), (2, 2)])
    """
    ones = np.concatenate([[True], np.asarray(tool_mask, bool), [True]])
    falls = np.flatnonzero(ones[:-1] & ~ones[1:]).tolist()  # response positions where tool tokens begin
    rises = np.flatnonzero(~ones[:-1] & ones[1:]).tolist()  # and where they end
    return list(zip([0, *rises], [*falls, len(tool_mask)], strict=True))


def link_turns(batch: GenerationBatch) -> list[Link]:
    """Which engine call produced which span of which row.

    TRL keeps order: the first turn's calls are the batch's rows; a later turn's calls are, in order, the rows whose response
    goes on after tool tokens (``method`` framework). Where the counts don't fit that, rows are found by content: the call's
    input must be the beginning of the row, each row is used once, and several candidates are ambiguous.
    """
    if batch.tool_mask is None:
        segments = [[(0, len(tokens))] for tokens in batch.completions]
    else:
        segments = [sampled_segments(mask) for mask in batch.tool_mask]
    links: list[Link] = []
    for turn in batch.turns:
        rows = [row for row, spans in enumerate(segments) if len(spans) > turn.number]
        if len(rows) == len(turn.outputs):
            links += [Link(turn.number, request, row, *segments[row][turn.number], "framework", False) for request, row in enumerate(rows)]
        else:
            links += _linked_by_content(batch, turn)
    return links


def _linked_by_content(batch: GenerationBatch, turn: Turn) -> list[Link]:
    links: list[Link] = []
    free = list(range(len(batch.completions)))
    for request, (given, answer) in enumerate(zip(turn.inputs, turn.outputs, strict=True)):
        kept = {row: _kept(batch.prompts[row] + batch.completions[row], given, answer) for row in free}
        fitting = [row for row, count in kept.items() if count is not None]
        if fitting:
            start = len(given) - len(batch.prompts[fitting[0]])
            links.append(Link(turn.number, request, fitting[0], start, start + (kept[fitting[0]] or 0), "content", len(fitting) > 1))
            free.remove(fitting[0])
    return links


def _kept(row: Tokens, given: Tokens, answer: Tokens) -> int | None:
    """How many tokens of ``answer`` follow ``given`` in ``row`` (the last turn may have been cut); None where they don't."""
    rest = row[len(given) :]
    count = min(len(rest), len(answer))
    return count if row[: len(given)] == given and rest[:count] == answer[:count] else None


def rollout_logprobs(batch: GenerationBatch, links: Sequence[Link], width: int) -> tuple[Any, Any, int]:
    """Sampling log-probabilities (N, width) from the turns' taps, which of them are there (N, width), and mismatches.

    A mismatch is a row whose drawn tokens, as the sampler saw them, are not the row's tokens: it gets no numbers.
    """
    values = np.full((len(batch.completions), width), np.nan, np.float32)
    there = np.zeros(values.shape, np.uint8)
    mismatches = 0
    turns = {turn.number: turn for turn in batch.turns}
    for link in links:
        sampled = turns[link.turn].sampled
        count = link.end - link.start
        if sampled is None or count == 0:
            continue
        if not np.array_equal(sampled.tokens[link.request, :count], batch.completions[link.row][link.start : link.end]):
            mismatches += 1
            continue
        values[link.row, link.start : link.end] = sampled.logprobs[link.request, :count]
        there[link.row, link.start : link.end] = 1
    return values, there, mismatches


class RoutedRows(NamedTuple):
    """Rollout routing of one turn. rows: batch row of each request kept; mask (rows, W): token rows to record.

    requests: the requests kept, in order. first_positions: absolute position of each row's first kept token.
    """

    rows: list[int]
    requests: list[int]
    mask: Any
    first_positions: list[int]


def routed_rows(batch: GenerationBatch, links: Sequence[Link]) -> dict[int, RoutedRows]:
    """Which token rows of each turn's routing to record, by turn.

    A later turn runs the earlier tokens again in its prefill; each position is recorded from the forward that
    the next token was sampled with, or first saw it, so that parts of a row never overlap.
    """
    covered = [0] * len(batch.completions)
    found: dict[int, RoutedRows] = {}
    for turn in batch.turns:
        kept = [link for link in links if link.turn == turn.number and link.end > link.start]
        if turn.routed is None or turn.sampled is None or not kept:
            continue
        prompt_width, width = turn.sampled.prompt_width, turn.routed.experts.shape[1]
        mask = np.zeros((len(kept), width), bool)
        first = []
        for index, link in enumerate(kept):
            given = len(turn.inputs[link.request])
            mask[index, prompt_width - given + covered[link.row] : prompt_width + link.end - link.start - 1] = True
            first.append(covered[link.row])
            covered[link.row] = given + link.end - link.start - 1
        found[turn.number] = RoutedRows([link.row for link in kept], [link.request for link in kept], mask, first)
    return found
