"""What kind of difference two token lists have that should be the same, as far as ids alone tell."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

Array = Any
PLACEHOLDERS = 8
"""Equal tokens in a row from which on they are taken for image placeholders."""
SPECIAL = 4
"""Tokens that only one side has, in one place, up to which they are taken for special tokens."""


class TokenDifference(NamedTuple):
    """kind: truncation, special tokens, image placeholders, re-tokenised text or template. position: of the first difference.

    engine, trainer: how many tokens of each side lie between the common beginning and the common end.
    """

    kind: str
    position: int
    engine: int
    trainer: int


def classify(engine: Array, trainer: Array, sampled: Array) -> TokenDifference | None:
    """Compare two token lists (one-dimensional integer arrays); None where they are equal.

    sampled: for each of the trainer's tokens whether the policy sampled it (False for prompt, tool and template tokens). A difference in
    sampled text is re-tokenised text; one in the rest is the template's.
    """
    shared = min(len(engine), len(trainer))
    differs = np.flatnonzero(engine[:shared] != trainer[:shared])
    head = int(differs[0]) if len(differs) else shared
    if head == len(engine) == len(trainer):
        return None
    rest = shared - head
    back = np.flatnonzero(engine[len(engine) - rest :][::-1] != trainer[len(trainer) - rest :][::-1])
    tail = int(back[0]) if len(back) else rest
    a, b = engine[head : len(engine) - tail], trainer[head : len(trainer) - tail]
    return TokenDifference(_kind(a, b, head, tail, sampled), head, len(a), len(b))


def _kind(a: Array, b: Array, head: int, tail: int, sampled: Array) -> str:
    longer, shorter = (a, b) if len(a) >= len(b) else (b, a)
    if _has_run(longer) and not _has_run(shorter):
        return "image placeholders"
    if len(shorter) == 0 and head == 0 and tail == 0:
        return "truncation"
    if len(shorter) == 0:
        if len(longer) <= SPECIAL:
            return "special tokens"
        return "truncation" if tail == 0 or head == 0 else "template"
    touched = sampled[head : head + max(1, len(b))]
    return "re-tokenised text" if touched.any() else "template"


def _has_run(tokens: Array) -> bool:
    """True where one token fills at least PLACEHOLDERS places in a row."""
    if len(tokens) < PLACEHOLDERS:
        return False
    borders = np.flatnonzero(np.diff(tokens)) + 1
    return bool(np.diff(np.concatenate([[0], borders, [len(tokens)]])).max() >= PLACEHOLDERS)
