"""Copies of what a training loop hands over, made before the call returns; laid out later, on the writer's thread.

On the calling thread a value is only copied, narrowed to the type that the run stores (int64 tokens become
int32, int32 expert ids one byte). Device tensors are cloned on the current stream, which costs memory bandwidth of
the device only, and travel to pinned host memory on a stream of their own; the writer waits for them.
Removing padding and joining rows is the writer's work.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlaudit.recording import Packed, Padded
from rlaudit.spool import Blobs, Constant, Field, Lists, Scalars

Array = np.ndarray[Any, Any]


class CaptureRefused(Exception):
    """A copy that would harm the run (a CUDA graph is being captured on this stream)."""


class HostCopy:
    """A copy in host memory that may still be on its way from a device, where it may have a wider type."""

    __slots__ = ("_array", "_event", "_kind")

    def __init__(self, array: Array, event: Any = None, kind: np.dtype[Any] | None = None) -> None:
        self._array = array
        self._event = event
        self._kind = kind if kind is not None else array.dtype

    @property
    def nbytes(self) -> int:
        """Bytes that the copy holds."""
        return int(self._array.nbytes)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the copy."""
        return tuple(self._array.shape)

    def array(self) -> Array:
        """The values; waits for the device where they come from one."""
        if self._event is not None:
            self._event.synchronize()
            self._event = None
        if self._array.dtype != self._kind:
            self._array = self._array.astype(self._kind)
        return self._array


def host_copy(values: Any, kind: np.dtype[Any]) -> HostCopy:
    """Copy an array or tensor to host memory as ``kind``. Values that don't fit the type are the caller's error."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(values, torch.Tensor):
        return _tensor_copy(torch, values.detach(), kind)
    source = np.asarray(values)
    if kind == np.uint8 and source.dtype == np.bool_:
        source = source.view(np.uint8)
    return HostCopy(np.array(source, dtype=kind, order="C", copy=True))


def _tensor_copy(torch: Any, tensor: Any, kind: np.dtype[Any]) -> HostCopy:
    if tensor.device.type == "cpu":
        if tensor.dtype == torch.bfloat16:
            tensor = tensor.float()
        if tensor.dtype == torch.bool and kind == np.uint8:
            tensor = tensor.view(torch.uint8)
        return HostCopy(np.array(tensor.numpy(), dtype=kind, order="C", copy=True))
    if tensor.device.type != "cuda":
        return HostCopy(
            np.ascontiguousarray(tensor.to("cpu").float().numpy() if tensor.is_floating_point() else tensor.to("cpu").numpy(), kind)
        )
    return _device_copy(torch, tensor, kind)


_COPY_STREAMS: dict[Any, Any] = {}


def _device_copy(torch: Any, tensor: Any, kind: np.dtype[Any]) -> HostCopy:
    """Device to pinned host memory without blocking the stream that computes (torch.cuda semantics of streams and pinned memory)."""
    if torch.cuda.is_current_stream_capturing():
        raise CaptureRefused("a CUDA graph is being captured; nothing is read from it")
    device = tensor.device
    # Two-byte expert ids travel as int32, which every device casts to, and are narrowed on the writer's thread.
    name = {"i4": "int32", "i8": "int64", "f4": "float32", "f8": "float64", "u1": "uint8", "u2": "int32"}[kind.str.lstrip("<>|=")]
    clone = tensor.to(getattr(torch, name), copy=True)
    if device not in _COPY_STREAMS:
        _COPY_STREAMS[device] = torch.cuda.Stream(device)
    stream = _COPY_STREAMS[device]
    stream.wait_stream(torch.cuda.current_stream(device))
    host = torch.empty(clone.shape, dtype=clone.dtype, pin_memory=True)
    with torch.cuda.stream(stream):
        host.copy_(clone, non_blocking=True)
        event = torch.cuda.Event()
        event.record(stream)
    # The allocator may hand the clone's memory out again only when the copy is done.
    clone.record_stream(stream)
    return HostCopy(host.numpy(), event, kind)


class Vector:
    """One scalar a row, from a list, array or tensor of n values."""

    def __init__(self, name: str, values: Any) -> None:
        self.name = name
        self._copy: HostCopy | list[Any]
        if isinstance(values, Sequence) and not isinstance(values, (str, bytes)):
            self._copy = [value.item() if hasattr(value, "item") else value for value in values]
        else:
            self._copy = host_copy(values, np.dtype(_natural_type(values)))

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self._copy.nbytes if isinstance(self._copy, HostCopy) else 64 * len(self._copy)

    def fields(self, low: int, high: int) -> dict[str, Field]:
        """The column for rows [low, high)."""
        values = self._copy.array().tolist() if isinstance(self._copy, HostCopy) else self._copy
        return {self.name: Scalars(values[low:high])}


def _natural_type(values: Any) -> str:
    return "f8" if "float" in str(values.dtype) else "i8"


class Ragged:
    """One list a row, from a batch (see ``rlaudit.recording``)."""

    def __init__(self, name: str, batch: Any, kind: str, rows: int) -> None:
        self.name = name
        self.kind = np.dtype(kind)
        self._mask: HostCopy | None = None
        self._lengths: HostCopy | None = None
        self._valid: HostCopy | None = None
        self._rows: list[HostCopy | list[Any] | None] | None = None
        self._values: HostCopy | None = None
        if isinstance(batch, Padded):
            self._take_padded(batch)
        elif isinstance(batch, Packed):
            self._rows = list(packed_rows(batch, self.kind))
        else:
            self._rows = [_row_copy(row, self.kind) for row in batch]
        count = len(self._rows) if self._rows is not None else self._padded.shape[0]
        if count != rows:
            raise ValueError(f"{name} has {count} rows where there are {rows} sequences")

    def _take_padded(self, batch: Padded) -> None:
        if (batch.mask is None) == (batch.lengths is None):
            raise ValueError(f"{self.name}: Padded takes exactly one of mask and lengths")
        self._values = host_copy(batch.values, self.kind)
        if batch.mask is not None:
            self._mask = host_copy(batch.mask, np.dtype("u1"))
        else:
            self._lengths = host_copy(batch.lengths, np.dtype("i4"))
        if batch.valid is not None:
            self._valid = host_copy(batch.valid, np.dtype("u1"))

    @property
    def _padded(self) -> HostCopy:
        assert self._values is not None
        return self._values

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        copies = [c for c in (self._values, self._mask, self._lengths, self._valid) if c is not None]
        rows = sum(row.nbytes if isinstance(row, HostCopy) else 8 * len(row) for row in self._rows or () if row is not None)
        return rows + sum(copy.nbytes for copy in copies)

    def pieces(self, low: int, high: int) -> list[tuple[Array, Array | None] | None]:
        """Values and validity of each row in [low, high), padding removed; None for a missing row."""
        if self._rows is not None:
            return [None if row is None else _finished_row(row, self.kind) for row in self._rows[low:high]]
        values = self._padded.array()[low:high]
        valid = self._valid.array()[low:high] if self._valid is not None else None
        found: list[tuple[Array, Array | None] | None] = []
        for row, keep in enumerate(self._kept(low, high, values.shape[1])):
            found.append((values[row][keep], valid[row][keep] if valid is not None else None))
        return found

    def _kept(self, low: int, high: int, width: int) -> list[slice | Array]:
        """What each row keeps: a slice where the kept entries are adjacent (a view, no copy), else a mask."""
        if self._lengths is not None:
            return [slice(0, int(length)) for length in self._lengths.array()[low:high]]
        assert self._mask is not None
        mask = self._mask.array()[low:high] != 0
        counts = mask.sum(1)
        starts = mask.argmax(1)
        ends = width - mask[:, ::-1].argmax(1)
        return [
            slice(0, 0) if count == 0 else slice(int(start), int(end)) if end - start == count else mask[row]
            for row, (count, start, end) in enumerate(zip(counts, starts, ends, strict=True))
        ]

    def fields(self, low: int, high: int) -> dict[str, Field]:
        """The column for rows [low, high)."""
        pieces = self.pieces(low, high)
        lengths = np.array([-1 if piece is None else len(piece[0]) for piece in pieces], np.int32)
        values = np.concatenate([piece[0] for piece in pieces if piece is not None] or [np.zeros(0, self.kind)])
        valid = None
        if any(piece is not None and piece[1] is not None for piece in pieces):
            valid = np.concatenate([np.ones(len(p[0]), np.uint8) if p[1] is None else p[1] for p in pieces if p is not None])
        return {self.name: Lists(self.kind.str, flat_view(lengths), flat_view(values), flat_view(valid) if valid is not None else None)}


class PackedRow(HostCopy):
    """One sequence of a packed copy: a view that is cut when the copy has arrived."""

    __slots__ = ("_bounds", "_whole")

    def __init__(self, whole: HostCopy, bounds: Callable[[], tuple[int, int]]) -> None:
        self._whole = whole
        self._bounds = bounds

    @property
    def nbytes(self) -> int:
        """Bytes that the view adds: none, the whole copy is counted by its first row."""
        return 0

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole copy without its first axis, which is known only later, behind a placeholder."""
        return (-1, *self._whole.shape[1:])

    def array(self) -> Array:
        """The sequence's entries; waits for the device where they come from one."""
        low, high = self._bounds()
        return self._whole.array()[low:high]


def packed_rows(batch: Packed, kind: np.dtype[Any]) -> list[HostCopy]:
    """The sequences of a packed batch. One copy for all; offsets are read when the copy has arrived, so a device isn't waited for."""
    whole = host_copy(batch.values, kind)
    offsets = host_copy(batch.offsets, np.dtype("i8"))
    skip = host_copy(batch.skip, np.dtype("i8")) if batch.skip is not None else None
    keep = host_copy(batch.keep, np.dtype("i8")) if batch.keep is not None else None

    def bounds(row: int) -> tuple[int, int]:
        low, high = (int(value) for value in offsets.array()[row : row + 2])
        if high > len(whole.array()):
            raise ValueError(f"offsets reach to {high}, the packed values end at {len(whole.array())}")
        low = min(high, low + (int(skip.array()[row]) if skip is not None else 0))
        return low, min(high, low + int(keep.array()[row])) if keep is not None else high

    rows: list[HostCopy] = [PackedRow(whole, functools.partial(bounds, row)) for row in range(offsets.shape[0] - 1)]
    if rows:
        rows[0] = _Counted(whole, functools.partial(bounds, 0))
    return rows


class _Counted(PackedRow):
    """The first row of a packed copy, which stands for the whole copy's memory."""

    __slots__ = ()

    @property
    def nbytes(self) -> int:
        """Bytes of the whole copy."""
        return self._whole.nbytes


def _row_copy(row: Any, kind: np.dtype[Any]) -> HostCopy | list[Any] | None:
    if row is None:
        return None
    if isinstance(row, (list, tuple, range)):
        return list(row)
    return host_copy(row, kind)


def _finished_row(row: HostCopy | list[Any], kind: np.dtype[Any]) -> tuple[Array, Array | None]:
    if isinstance(row, HostCopy):
        return row.array().reshape(-1), None
    if None not in row:
        return np.array(row, kind), None
    valid = np.array([value is not None for value in row], np.uint8)
    return np.array([0 if value is None else value for value in row], kind), valid


def flat_view(array: Array) -> memoryview:
    """The bytes of an array, row by row; a view where the array is contiguous."""
    return memoryview(np.ascontiguousarray(array).data).cast("B") if array.size else memoryview(b"")


class Experts:
    """The routing of n sequences: expert ids (tokens, layers, top_k) and, optionally, gate weights of the same shape."""

    def __init__(self, experts: Any, weights: Any, layers: int, num_experts: int, rows: int) -> None:
        self._kind = np.dtype("u1" if num_experts <= 256 else "<u2")
        self._experts = self._copies(experts, self._kind)
        self._weights = self._copies(weights, np.dtype("<f4")) if weights is not None else None
        self._mask = host_copy(experts.mask, np.dtype("u1")) if isinstance(experts, Padded) and experts.mask is not None else None
        shape = self._experts.shape if isinstance(self._experts, HostCopy) else self._experts[0].shape if self._experts else ()
        count = self._experts.shape[0] if isinstance(self._experts, HostCopy) else len(self._experts)
        if count != rows:
            raise ValueError(f"experts has {count} rows where there are {rows} sequences")
        if shape and (len(shape) not in (3, 4) or shape[-2] != layers):
            raise ValueError(f"experts has shape {shape}; expected (..., tokens, {layers} layers, top_k)")
        self.top_k = shape[-1] if shape else 0

    @staticmethod
    def _copies(values: Any, kind: np.dtype[Any]) -> HostCopy | list[HostCopy]:
        if isinstance(values, Padded):
            return host_copy(values.values, kind)
        if isinstance(values, Packed):
            return packed_rows(values, kind)
        return [host_copy(row, kind) for row in values]

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(c.nbytes for part in (self._experts, self._weights or []) for c in (part if isinstance(part, list) else [part]))

    def fields(self, low: int, high: int) -> dict[str, Field]:
        """The columns experts, weights and tokens for rows [low, high)."""
        experts = self._rows(self._experts, low, high)
        fields: dict[str, Field] = {"experts": _blobs(experts), "tokens": Scalars([row.shape[0] for row in experts])}
        if self._weights is not None:
            fields["weights"] = _blobs(self._rows(self._weights, low, high))
        return fields

    def _rows(self, copies: HostCopy | list[HostCopy], low: int, high: int) -> list[Array]:
        if isinstance(copies, list):
            return [copy.array() for copy in copies[low:high]]
        values = copies.array()[low:high]
        if self._mask is None:
            return list(values)
        mask = self._mask.array()[low:high] != 0
        return [row if keep.all() else row[keep] for row, keep in zip(values, mask, strict=True)]


def _blobs(rows: list[Array]) -> Blobs:
    lengths = np.array([row.nbytes for row in rows], np.int64)
    joined = rows[0] if len(rows) == 1 else np.concatenate([row.reshape(-1) for row in rows] or [np.zeros(0, np.uint8)])
    return Blobs(flat_view(lengths), flat_view(joined))


class Fixed:
    """The same value for every row."""

    nbytes = 0

    def __init__(self, name: str, value: Any) -> None:
        self.name = name
        self.value = value

    def fields(self, low: int, high: int) -> dict[str, Field]:
        """The column."""
        return {self.name: Constant(self.value)}


Pending = Vector | Ragged | Experts | Fixed
