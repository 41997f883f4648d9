"""The Python API for hand-written training loops: ``rlaudit.record_rollout`` and its kin.

Each function returns at once, having looked at one module variable, when nothing is capturing.
Under ``rlaudit capture`` the process's recorder is behind it. Arguments are copied before the
call returns, so a loop may overwrite its tensors right after. Nothing here imports torch or numpy.

Array arguments are batches of ``n`` sequences and may be
- a sequence of ``n`` one-dimensional sequences, arrays or tensors (``None`` for a missing one; in
  plain lists a ``None`` element is a missing value), or
- ``Padded(values, ...)``: a two-dimensional array or tensor with padding left or right, or
- ``Packed(values, offsets)``: sequences one behind the other without padding, as remove-padding forwards hold them.
Arguments that are one value a sequence take a scalar (for all) or a sequence of ``n``.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as typing.TYPE_CHECKING; importing typing would cost every Python process below a captured command
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Protocol

    from rlaudit.batches import Packed, Padded

    PerSequence = Any
    """A scalar for all sequences, or a sequence of n."""
    Batch = Any
    """n sequences: see the module's docstring."""

    class Sink(Protocol):
        """What a recorder offers; ``rlaudit.capture.sink`` implements it."""

        def record_rollout(self, **columns: Any) -> None: ...
        def record_scores(self, **columns: Any) -> None: ...
        def record_routing(self, **columns: Any) -> None: ...
        def record_request(self, **columns: Any) -> None: ...
        def record_links(self, **columns: Any) -> None: ...
        def record_weights(self, **columns: Any) -> None: ...
        def record_metrics(self, **columns: Any) -> None: ...
        def record_event(self, **columns: Any) -> None: ...
        def step(self, step: int) -> None: ...
        def wants(self, what: str) -> bool: ...


__all__ = [
    "Packed",
    "Padded",
    "capturing",
    "record_event",
    "record_links",
    "record_metrics",
    "record_request",
    "record_rollout",
    "record_routing",
    "record_scores",
    "record_weights",
    "set_sink",
    "step",
    "wants",
]

_sink: Sink | None = None


def set_sink(sink: Sink | None) -> None:
    """Install the recorder behind these functions (capture does this), or remove it with None."""
    global _sink  # noqa: PLW0603  (one recorder a process is the point)
    _sink = sink


def capturing() -> bool:
    """True where a recorder is installed: lets a loop skip preparing what it would only record."""
    return _sink is not None


def wants(what: str) -> bool:
    """True where rows of the table ``what`` would be kept now: spares reading what would be dropped.

    Also for what a user opts into: routing_weights, record_routing, record_logprobs, checksum_weights, probe.
    """
    return _sink is not None and _sink.wants(what)


def record_rollout(
    *,
    step: int,
    sequence_ids: Sequence[str],
    prompt_tokens: Batch,
    response_tokens: Batch,
    logprobs: Batch | None = None,
    group_ids: PerSequence = None,
    trajectory_ids: PerSequence = None,
    turns: PerSequence = None,
    phase: str = "train",
    sampled_mask: Batch | None = None,
    loss_mask: Batch | None = None,
    rewards: PerSequence = None,
    advantages: PerSequence = None,
    finish_reasons: PerSequence = None,
    policy_version: PerSequence = None,
    policy_updates: PerSequence = None,
    policy_syncs: PerSequence = None,
    version_spans: Sequence[Any] | None = None,
    temperature: PerSequence = None,
    top_p: PerSequence = None,
    top_k: PerSequence = None,
    min_p: PerSequence = None,
    repetition_penalty: PerSequence = None,
    forward: str = "decode",
    logprob_mode: str | None = None,
    dtype: str | None = None,
    weight_dtype: str | None = None,
    backend: str | None = None,
) -> None:
    """Record sampled responses: one ``sequences`` row each and, with ``logprobs``, one ``scores`` row
    of source ``rollout``. Column meanings: ``rlaudit schema sequences`` and ``scores``.

    Lengths: ``logprobs``, ``sampled_mask`` and ``loss_mask`` are aligned with ``response_tokens``
    (n rows of response length, in nats and booleans). ``None`` is written as null. Raises nothing in a
    captured run: bad arguments are reported once and counted.
    """
    if _sink is not None:
        _sink.record_rollout(**_given(locals()))


def record_scores(
    *,
    step: int,
    sequence_ids: Sequence[str],
    source: str,
    logprobs: Batch,
    entropies: Batch | None = None,
    update: int = 0,
    first_position: PerSequence = 0,
    parts: PerSequence = None,
    policy_version: PerSequence = None,
    policy_updates: PerSequence = None,
    policy_syncs: PerSequence = None,
    forward: str | None = None,
    temperature: PerSequence = None,
    logprob_mode: str | None = None,
    dtype: str | None = None,
    weight_dtype: str | None = None,
    backend: str | None = None,
    micro_batch: int | None = None,
    prompt_tokens: Batch | None = None,
) -> None:
    """Record log-probabilities (nats, aligned with the response tokens) of recorded sequences.

    ``source``: trainer, update, reference, or rollout where they come later than the tokens.
    ``step`` is the sequence's step, also when the update happens in a later one; ``update`` counts
    the optimizer steps in between. A context-parallel rank records its chunk of each sequence as a part: ``first_position`` is the
    response position of its first entry, ``parts`` how many rows the sequence is split into over all ranks. ``prompt_tokens`` is
    only used to decide sampling (``--sample``) in a process that did not record the rollout.
    """
    if _sink is not None:
        _sink.record_scores(**_given(locals()))


def record_routing(
    *,
    step: int | None,
    sequence_ids: Sequence[str] | None,
    source: str,
    experts: Any,
    num_experts: int,
    layer_ids: Sequence[int],
    weights: Any = None,
    request_ids: Sequence[str] | None = None,
    first_position: PerSequence = 0,
    parts: PerSequence = None,
    update: int = 0,
    policy_version: PerSequence = None,
    policy_updates: PerSequence = None,
    policy_syncs: PerSequence = None,
    prompt_tokens: Batch | None = None,
) -> None:
    """Record the experts chosen for each token.

    ``experts``: a sequence of n integer arrays or tensors (tokens, layers, top_k),
    ``Padded(values, mask)`` with values (n, width, layers, top_k) and mask (n, width), or ``Packed(values, offsets)`` with values
    (total, layers, top_k). Slots stay in the given order. ``weights``: the same shapes, floating point. ``layer_ids``: absolute
    decoder layers. A pipeline stage records its own layers, a sequence-parallel rank its own tokens (``first_position``: absolute
    position of the first); ``parts`` says how many rows they are in all. Tensor-parallel ranks hold copies: one of them records.
    """
    if _sink is not None:
        _sink.record_routing(**_given(locals()))


def record_request(
    *,
    request_ids: Sequence[str],
    input_tokens: Batch,
    output_tokens: Batch,
    logprobs: Batch | None = None,
    input_logprobs: Batch | None = None,
    engine_id: str | None = None,
    phase: PerSequence = None,
    step: int | None = None,
    trajectory_ids: PerSequence = None,
    turns: PerSequence = None,
    parent_ids: PerSequence = None,
    logprob_mode: str | None = None,
    input_logprob_mode: str | None = None,
    policy_version: PerSequence = None,
    policy_updates: PerSequence = None,
    policy_syncs: PerSequence = None,
    version_spans: Sequence[Any] | None = None,
    cached_tokens: PerSequence = None,
    retractions: PerSequence = None,
    finish_reasons: PerSequence = None,
    temperature: PerSequence = None,
    top_p: PerSequence = None,
    top_k: PerSequence = None,
    min_p: PerSequence = None,
    repetition_penalty: PerSequence = None,
    sampling: PerSequence = None,
    dtype: str | None = None,
    weight_dtype: str | None = None,
    backend: str | None = None,
    started: PerSequence = None,
    finished: PerSequence = None,
) -> None:
    """Record engine calls, tokens in and tokens out: n rows of ``requests``.

    ``logprobs`` are aligned with ``output_tokens``, ``input_logprobs`` with ``input_tokens`` (its first entry is None). ``sampling``:
    JSON text. ``started``, ``finished``: seconds since the epoch. Which call produced which part of a sequence is found by content
    (``rlaudit.linking``) unless ``record_links`` says it.
    """
    if _sink is not None:
        _sink.record_request(**_given(locals()))


def record_links(
    *,
    step: int,
    sequence_ids: Sequence[str],
    request_ids: Sequence[str],
    turns: PerSequence = 0,
    starts: PerSequence = 0,
    ends: PerSequence = None,
    method: str = "framework",
    ambiguous: PerSequence = False,
) -> None:
    """Record which engine call produced response tokens [start, end) of which sequence."""
    if _sink is not None:
        _sink.record_links(**_given(locals()))


def record_weights(
    *,
    fact: str,
    policy_version: str | None = None,
    policy_updates: int | None = None,
    policy_syncs: int | None = None,
    tensor: str | Sequence[str] | None = None,
    checksum: str | Sequence[str] | None = None,
    elements: int | Sequence[int] | None = None,
    elements_of: int | Sequence[int] | None = None,
    stride: int | Sequence[int] | None = None,
    dtype: str | Sequence[str] | None = None,
    replica: int | Sequence[int] | None = None,
    checkpoint: str | None = None,
    engine_id: str | None = None,
) -> None:
    """Record a weight synchronisation (``fact`` sent or received), residency check or saved checkpoint: one row, or one a tensor.

    With a sequence of names as ``tensor``, the columns from ``checksum`` to ``replica`` are one value a name or one for all.
    """
    if _sink is not None:
        _sink.record_weights(**_given(locals()))


def record_metrics(*, step: int, framework: str, values: dict[str, float]) -> None:
    """Record numbers that the framework itself logged, under its own names."""
    if _sink is not None:
        _sink.record_metrics(**_given(locals()))


def record_event(
    *, kind: str, name: str, message: str | None = None, count: int | None = None, detail: dict[str, Any] | None = None
) -> None:
    """Record something that a reader of the run should know."""
    if _sink is not None:
        _sink.record_event(**_given(locals()))


def step(number: int) -> None:
    """Say that the loop's step ``number`` ended: everything recorded so far is handed to the writer."""
    if _sink is not None:
        _sink.step(number)


def _given(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments that say something; None means the same as leaving one out."""
    return {name: value for name, value in arguments.items() if value is not None}


def __getattr__(name: str) -> Any:
    if name in ("Packed", "Padded"):
        from rlaudit import batches

        return getattr(batches, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
