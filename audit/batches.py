"""How batches of sequences are given to ``rlaudit.record_*`` where they are not one array a row: padded, or packed."""

from __future__ import annotations

from typing import Any, NamedTuple


class Padded(NamedTuple):
    """A padded batch: ``values`` (n, width) and which entries of each row count.

    Exactly one of ``mask`` (n, width; non-zero keeps, kept entries stay in order) and
    ``lengths`` (n; keeps the first ``lengths[i]`` entries) is given. ``valid`` (n, width) marks, with
    zero, kept entries whose value is missing: they become null.
    """

    values: Any
    mask: Any = None
    lengths: Any = None
    valid: Any = None


class Packed(NamedTuple):
    """A packed batch: ``values`` (total, ...) and ``offsets`` (n + 1), as ``cu_seqlens``: sequence i is values[offsets[i]:offsets[i + 1]].

    ``skip`` and ``keep`` (n; None: 0 and all) cut each sequence to its entries [skip, skip + keep): the response in a packed
    prompt and response.
    """

    values: Any
    offsets: Any
    skip: Any = None
    keep: Any = None
