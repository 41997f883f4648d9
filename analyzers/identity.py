"""Token identity: did the trainer consume the very tokens that the engine was given and returned (token-in, token-out)?

For every link (an engine call that produced response tokens [start, end) of a sequence) the call's output must equal those
tokens, and its input must equal the prompt and the response tokens before ``start``. Hashed tokens compare as well as plain ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rlaudit.analyzers.grouping import Steps, integers
from rlaudit.analyzers.pairing import EXAMPLES
from rlaudit.analyzers.token_differences import classify
from rlaudit.lists import ListColumn, list_column
from rlaudit.run import Run

Array = Any


class TokenMismatch(NamedTuple):
    """A call whose tokens differ from what the trainer consumed. side: output or input.

    position: response position of the first difference (input: position in the input); None where only the length differs.
    kind: what kind of difference (``token_differences``). before, after: mean |Δ log p| of the sequence's tokens before and from the
    place on, None where there are none.
    """

    step: int
    sequence_id: str
    turn: int | None
    side: str
    position: int | None
    engine_length: int
    trainer_length: int
    kind: str | None = None
    before: float | None = None
    after: float | None = None


@dataclass(slots=True)
class Identity:
    """Counts of links. unknown_requests: links whose call has no row. ambiguous: several calls fit equally well."""

    links: int = 0
    ambiguous: int = 0
    unknown_requests: int = 0
    unknown_sequences: int = 0
    outputs_compared: int = 0
    inputs_compared: int = 0
    output_mismatches: int = 0
    input_mismatches: int = 0
    kinds: dict[str, int] = field(default_factory=dict)
    examples: list[TokenMismatch] = field(default_factory=list)

    def add(self, other: Identity) -> None:
        """Take in another group of steps."""
        for name in self.__slots__:
            if name not in ("examples", "kinds"):
                setattr(self, name, getattr(self, name) + getattr(other, name))
        self.examples = (self.examples + other.examples)[:EXAMPLES]
        for kind, count in other.kinds.items():
            self.kinds[kind] = self.kinds.get(kind, 0) + count


def check_identity(run: Run, steps: Steps) -> Identity:
    """Compare the tokens of the links of ``steps``."""
    links = run.read("links", ("attempt", "step", "sequence_id", "request_id", "turn", "start", "end", "ambiguous"), steps=steps)
    found = Identity(links=links.num_rows, ambiguous=int(pc.sum(links["ambiguous"]).as_py() or 0))
    if links.num_rows == 0:
        return found
    sequences = run.read("sequences", ("attempt", "step", "sequence_id", "prompt_tokens", "response_tokens", "sampled_mask"), steps=steps)
    requests = _requests(run, links, steps)
    q = _place(sequences, links, ("attempt", "step", "sequence_id"))
    r = _place(requests, links, ("attempt", "request_id"))
    found.unknown_sequences, found.unknown_requests = int((q < 0).sum()), int((r < 0).sum())
    both = np.flatnonzero((q >= 0) & (r >= 0))
    links, q, r = links.take(pa.array(both)), q[both], r[both]
    prompt, response = list_column(sequences["prompt_tokens"]), list_column(sequences["response_tokens"])
    given, returned = list_column(requests["input_tokens"]), list_column(requests["output_tokens"])
    start = integers(links["start"])
    end = np.where(np.asarray(links["end"].is_valid()), integers(links["end"]), start + returned.length[r])
    known = (returned.length[r] >= 0) & (response.length[q] >= 0)
    available = np.clip(response.length[q] - start, 0, None)
    length = np.minimum(end - start, available)
    differs = _differences(returned, response, returned.start[r], response.start[q] + start, np.minimum(returned.length[r], length))
    wrong = known & ((differs >= 0) | (returned.length[r] != length))
    found.outputs_compared, found.output_mismatches = int(known.sum()), int(wrong.sum())
    found.examples = _examples(links, wrong, "output", np.where(differs >= 0, differs + start, -1), returned.length[r], length)
    wrong_inputs = _check_inputs(links, q, r, prompt, response, given, start, found)
    for i in np.flatnonzero(wrong | wrong_inputs)[:KINDS_LOOKED_AT].tolist():
        own, at = int(q[i]), int(start[i])
        mask = sequences["sampled_mask"][own].as_py()
        sampled = np.array([True if flag is None else flag for flag in mask] if mask is not None else [True] * max(0, response.length[own]))
        whole = np.concatenate([_list(prompt, own), _list(response, own)])
        flags = np.concatenate([np.zeros(max(0, prompt.length[own]), bool), sampled])
        if wrong_inputs[i]:
            reach = int(prompt.length[own]) + at
            difference = classify(_list(given, int(r[i])), whole[:reach], flags[:reach])
        else:
            begin = int(prompt.length[own]) + at
            reach = begin + int(length[i])
            difference = classify(_list(returned, int(r[i])), whole[begin:reach], flags[begin:reach])
        if difference is not None:
            found.kinds[difference.kind] = found.kinds.get(difference.kind, 0) + 1
            side = "input" if wrong_inputs[i] else "output"
            key = links["step"][i].as_py(), links["sequence_id"][i].as_py(), links["turn"][i].as_py(), side
            found.examples = [e._replace(kind=difference.kind) if (e[:4] == key) else e for e in found.examples]
    return found


KINDS_LOOKED_AT = 1000
"""Differing calls of a group of steps whose kind of difference is looked at."""


def _list(column: ListColumn, row: int) -> Array:
    return column.values[column.start[row] :][: max(0, column.length[row])]


def measure_effects(run: Run, identity: Identity) -> None:
    """Fill in how |Δ log p| is before and after the place where the examples' tokens begin to differ."""
    if not identity.examples:
        return
    connection = run.connect()
    filled = []
    for example in identity.examples:
        place = None
        if example.position is not None:
            place = example.position if example.side == "output" else _response_position(run, example)
        if place is None:
            filled.append(example)
            continue
        row = connection.execute(_EFFECT, [place, place, example.step, example.sequence_id]).fetchone()
        filled.append(example._replace(before=row[0], after=row[1]) if row else example)
    connection.close()
    identity.examples = filled


_EFFECT = """SELECT avg(abs(delta)) FILTER (position < ?), avg(abs(delta)) FILTER (position >= ?)
FROM tokens WHERE comparable AND step = ? AND sequence_id = ?"""


def _response_position(run: Run, example: TokenMismatch) -> int:
    """Response position of a place in a call's input; 0 for one in the prompt."""
    where = (pc.field("sequence_id") == example.sequence_id) & (pc.field("step") == example.step)
    lengths = run.read("sequences", ("prompt_length",), filters=where)["prompt_length"].to_pylist()
    return max(0, (example.position or 0) - (lengths[0] or 0)) if lengths else 0


def _check_inputs(
    links: pa.Table, q: Array, r: Array, prompt: ListColumn, response: ListColumn, given: ListColumn, start: Array, found: Identity
) -> Array:
    """The call's input against the prompt and, for later turns, the response tokens before the call's own."""
    known = (given.length[r] >= 0) & (prompt.length[q] >= 0) & (response.length[q] >= start)
    expected = prompt.length[q] + start
    head = np.minimum(given.length[r], prompt.length[q])
    in_prompt = _differences(given, prompt, given.start[r], prompt.start[q], head)
    tail = np.clip(np.minimum(given.length[r] - prompt.length[q], start), 0, None)
    in_response = _differences(given, response, given.start[r] + head, response.start[q], tail)
    position = np.where(in_prompt >= 0, in_prompt, np.where(in_response >= 0, in_response + prompt.length[q], -1))
    wrong = known & ((position >= 0) | (given.length[r] != expected))
    found.inputs_compared, found.input_mismatches = int(known.sum()), int(wrong.sum())
    found.examples = (found.examples + _examples(links, wrong, "input", position, given.length[r], expected))[:EXAMPLES]
    return wrong


def _differences(a: ListColumn, b: ListColumn, a_start: Array, b_start: Array, length: Array) -> Array:
    """First offset at which a.values[a_start[i]:][:length[i]] and b.values[b_start[i]:][:length[i]] differ, -1 where they are equal."""
    out = np.full(len(length), -1, np.int64)
    for i, (at_a, at_b, n) in enumerate(zip(a_start.tolist(), b_start.tolist(), length.tolist(), strict=True)):
        if n > 0:
            unequal = a.values[at_a : at_a + n] != b.values[at_b : at_b + n]
            first = int(unequal.argmax())
            out[i] = first if unequal[first] else -1
    return out


def _examples(links: pa.Table, wrong: Array, side: str, position: Array, engine: Array, trainer: Array) -> list[TokenMismatch]:
    return [
        TokenMismatch(
            links["step"][i].as_py(),
            links["sequence_id"][i].as_py(),
            links["turn"][i].as_py(),
            side,
            int(position[i]) if position[i] >= 0 else None,
            int(engine[i]),
            int(trainer[i]),
        )
        for i in np.flatnonzero(wrong)[:EXAMPLES].tolist()
    ]


def _requests(run: Run, links: pa.Table, steps: Steps) -> pa.Table:
    """The calls that ``links`` name. Read by step where every call's file knows its steps, else by id alone."""
    columns = ("attempt", "request_id", "input_tokens", "output_tokens")
    by_id = pc.field("request_id").isin(pc.unique(links["request_id"]))
    stepped = all(segment.first_step is not None for segment in run.segments("requests"))
    found = run.read("requests", columns, steps=steps if stepped else None, filters=by_id)
    if stepped and found.num_rows < links.num_rows:  # calls without a step among calls that have one
        found = run.read("requests", columns, filters=by_id)
    return found


def _place(table: pa.Table, wanted: pa.Table, columns: tuple[str, ...]) -> Array:
    """For each row of ``wanted`` the first row of ``table`` with equal ``columns``, -1 where there is none."""
    keys = [pc.binary_join_element_wise(*(t[c].cast(pa.string()) for c in columns), "\x1f") for t in (table, wanted)]
    return np.asarray(pc.fill_null(pc.index_in(keys[1], value_set=keys[0].combine_chunks()), -1)).astype(np.int64)
