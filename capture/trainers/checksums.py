"""Checksums of parameters that add up over shards, so that no rank has to gather a tensor.

The checksum of a tensor is the sum modulo 2^64, over every ``stride``-th element of the whole tensor in row-major order, of a
64-bit mix of the element's global index and its bits. Rank by rank the elements are disjoint, so the sums of the shards add up to
the sum of the whole: exactly, in any order and for any split. Elements moved to other places change it; so does one bit.

    x = (index + 1) * 0x9E3779B97F4A7C15 + bits * 0xC2B2AE3D27D4EB4F        (modulo 2^64)
    x = x ^ (x >> 32);  x = x * 0xD6E8FEB86659FD93;  mix = x ^ (x >> 29)    (shifts without sign)

``bits`` is the element read as a two's complement integer of its own width (1, 2, 4 or 8 bytes).

Nothing here communicates between ranks, draws a random number or changes a parameter. DTensor: written after reading torch 2.13,
``torch.distributed.tensor._utils.compute_local_shape_and_global_offset`` and ``torch.distributed.fsdp._fully_shard._fsdp_param``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from rlaudit import recording
from rlaudit.capture.models.host import torch
from rlaudit.capture.trainers.shards import Shard, Unplaced, shard_of

SAMPLE_ABOVE = 1 << 24
"""Tensors with more elements than this are sampled, by default to about this many."""
_INDEX, _BITS, _MIX = 0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0xD6E8FEB86659FD93
_CHUNK = {"cpu": 1 << 16}
_DEVICE_CHUNK = 1 << 22
_SHORT = 1 << 14
"""Runs shorter than this are summed many at once."""


class TensorChecksum(NamedTuple):
    """The checksum of one tensor's shard on this rank.

    checksum: the sum, 0 <= checksum < 2^64. elements: how many elements it covers; elements_of: how many the whole tensor's covers.
    stride: every how manieth element counts (1: all). dtype: of the bits, as torch names it. replica: which copy of the tensor
    the shard is a part of.
    """

    name: str
    checksum: int
    elements: int
    elements_of: int
    stride: int
    dtype: str
    replica: int


class Checksums(NamedTuple):
    """What ``checksum_parameters`` found. left_out: tensors without a checksum, and why. seconds: how long it took."""

    tensors: tuple[TensorChecksum, ...]
    left_out: dict[str, str]
    seconds: float


def checksum_parameters(
    parameters: Any, *, budget_seconds: float | None = None, sample_above: int | None = SAMPLE_ABOVE, as_dtype: Any = None
) -> Checksums:
    """Checksum this rank's part of ``parameters``.

    parameters: a module (its ``named_parameters``), a mapping, or pairs of name and tensor. A value is a plain tensor (whole), a
    DTensor (FSDP2, tensor parallel) or a ``Shard`` that says where a plain tensor lies. sample_above: tensors of more elements are
    sampled by global index, the same elements on every rank; None samples nothing. as_dtype: cast before reading the bits, to
    compare an engine's bfloat16 weights with a trainer's float32 ones. budget_seconds: tensors that would take longer than what is
    left, at the speed seen so far, are left out; ranks may then differ in which, and ``weight_checksums`` shows those as incomplete.

    Waits for the device, once a tensor. Raises ValueError for a ``sample_above`` below 1; a tensor that has no
    checksum (unfinished reductions, unknown placement, elements wider than 8 bytes, no data) is named in ``left_out``.
    """
    if sample_above is not None and sample_above < 1:
        raise ValueError(f"sample_above is {sample_above}; it must be at least 1, or None")
    started = time.perf_counter()
    found: list[TensorChecksum] = []
    left_out: dict[str, str] = {}
    done = 0
    with torch().no_grad():
        for name, given in _named(parameters):
            try:
                shard = shard_of(given)
                stride = sampling_stride(math.prod(shard.shape), sample_above)
                if budget_seconds is not None and not _fits(shard.tensor.numel() // stride, done, started, budget_seconds):
                    left_out[name] = f"the time budget of {budget_seconds:g} s"
                    continue
                total, elements = _sum(shard, stride, as_dtype)
            except Unplaced as reason:
                left_out[name] = str(reason)
                continue
            done += elements
            dtype = str(as_dtype or shard.tensor.dtype).removeprefix("torch.")
            of = -(-math.prod(shard.shape) // stride)
            found.append(TensorChecksum(name, total, elements, of, stride, dtype, shard.replica or 0))
    return Checksums(tuple(found), left_out, time.perf_counter() - started)


def record_checksums(
    checksums: Checksums,
    *,
    fact: str,
    policy_version: str | None = None,
    policy_updates: int | None = None,
    policy_syncs: int | None = None,
    engine_id: str | None = None,
) -> None:
    """Record checksums as rows of ``weights`` (one a tensor, at once) and what was left out as an event. Does nothing outside capture."""
    if not recording.capturing():
        return
    if checksums.tensors:
        columns = list(zip(*checksums.tensors, strict=True))
        recording.record_weights(
            fact=fact,
            policy_version=policy_version,
            policy_updates=policy_updates,
            policy_syncs=policy_syncs,
            engine_id=engine_id,
            tensor=list(columns[0]),
            checksum=[f"{value:016x}" for value in columns[1]],
            elements=list(columns[2]),
            elements_of=list(columns[3]),
            stride=list(columns[4]),
            dtype=list(columns[5]),
            replica=list(columns[6]),
        )
    if checksums.left_out:
        recording.record_event(
            kind="checksums_left_out",
            name=fact,
            message="These tensors have no checksum; the detail says why.",
            count=len(checksums.left_out),
            detail=dict(list(checksums.left_out.items())[:100]),
        )


def sampling_stride(elements: int, sample_above: int | None) -> int:
    """Every how manieth element of a tensor counts: 1 up to ``sample_above`` elements, above it odd, so that it runs through columns.

    >>> sampling_stride(100, 100), sampling_stride(101, 100), sampling_stride(1000, 100)
    (1, 3, 11)
    """
    if sample_above is None or elements <= sample_above:
        return 1
    return -(-elements // sample_above) | 1


def _named(parameters: Any) -> Iterable[tuple[str, Any]]:
    if hasattr(parameters, "named_parameters"):
        return [(str(name), parameter) for name, parameter in parameters.named_parameters()]
    return list(parameters.items()) if isinstance(parameters, Mapping) else list(parameters)


def _fits(elements: int, done: int, started: float, budget: float) -> bool:
    elapsed = time.perf_counter() - started
    return elapsed + (elements * elapsed / done if done else 0.0) < budget


def _sum(shard: Shard, stride: int, as_dtype: Any) -> tuple[int, int]:
    """The sum over the shard's elements that count, and how many these are."""
    values, total, elements = shard.tensor.detach(), None, 0
    width = torch().empty((), dtype=as_dtype or values.dtype, device="meta").element_size()
    if width > 8:
        raise Unplaced(f"its elements are {width} bytes wide")
    if values.device.type == "meta":
        raise Unplaced("it has no data")
    size = _CHUNK.get(values.device.type, _DEVICE_CHUNK)
    starts, runs = shard.runs(values)
    if runs.shape[0] > 1 and runs.shape[1] < _SHORT:
        total, elements = _sum_short(starts, runs, stride, as_dtype, size)
        return int(total) % (1 << 64), elements
    for start, part in zip(starts.tolist(), runs, strict=False):
        skip = -start % stride
        kept = part[skip::stride] if skip < part.numel() else part[:0]
        for at in range(0, kept.numel(), size):
            piece = kept[at : at + size]
            index = torch().arange(piece.numel(), device=piece.device, dtype=torch().int64)
            index.mul_(_signed(_INDEX * stride)).add_(_signed(_INDEX * (start + skip + at * stride + 1)))
            mixed = _mixed(piece, index, as_dtype).sum()
            total = mixed if total is None else total + mixed
        elements += int(kept.numel())
    return (int(total) % (1 << 64) if total is not None else 0), elements


def _sum_short(starts: Any, runs: Any, stride: int, as_dtype: Any, size: int) -> tuple[Any, int]:
    """As ``_sum`` for many short runs: blocks of rows with an index for each element, those that don't count made 0."""
    along = torch().arange(runs.shape[1], device=runs.device, dtype=torch().int64)
    total, elements, rows = torch().zeros((), dtype=torch().int64, device=runs.device), 0, max(1, size // runs.shape[1])
    for at in range(0, runs.shape[0], rows):
        first = starts[at : at + rows]
        index = first.to(runs.device)[:, None] + along
        mixed = _mixed(runs[at : at + rows], (index + 1).mul_(_signed(_INDEX)), as_dtype)
        total += (mixed if stride == 1 else mixed.mul_(index.remainder(stride) == 0)).sum()
        # Multiples of the stride in [first, first + length).
        elements += int(
            ((first + runs.shape[1] - 1).div(stride, rounding_mode="floor") - (first - 1).div(stride, rounding_mode="floor")).sum()
        )
    return total, elements


def _mixed(piece: Any, keys: Any, as_dtype: Any) -> Any:
    """The mix of each element of ``piece`` with ``keys``, (global index + 1) * 0x9E37...: int64, ``piece``'s shape."""
    integers = {1: torch().int8, 2: torch().int16, 4: torch().int32, 8: torch().int64}
    cast = piece if as_dtype is None or piece.dtype == as_dtype else piece.to(as_dtype)
    x = cast.contiguous().view(integers[cast.element_size()]).to(torch().int64, copy=True)
    # int64 arithmetic wraps modulo 2^64; a shift without sign is a shift with sign and a mask.
    x.mul_(_signed(_BITS)).add_(keys)
    x.bitwise_xor_((x >> 32).bitwise_and_((1 << 32) - 1)).mul_(_signed(_MIX))
    return x.bitwise_xor_((x >> 29).bitwise_and_((1 << 35) - 1))


def _signed(value: int) -> int:
    value %= 1 << 64
    return value - (1 << 64) if value >= 1 << 63 else value
