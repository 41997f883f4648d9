"""Where a rank's piece of a parameter lies in the whole tensor."""

from __future__ import annotations

import math
import sys
from typing import Any, NamedTuple

from rlaudit.capture.models.host import torch


class Unplaced(Exception):
    """A tensor's place or its bits can't be told; the message says why."""


class Shard(NamedTuple):
    """A rank's box of a tensor. offset and shape (of the whole tensor): one entry a dimension. replica: which copy; None for rank's own."""

    tensor: Any
    offset: tuple[int, ...]
    shape: tuple[int, ...]
    replica: int | None = None

    def runs(self, values: Any) -> tuple[Any, Any]:
        """``values`` (this shard's elements) as R runs of elements consecutive in the whole tensor: global index of each run's first
        (R, int64, on the host), and the runs (R, length).
        """
        local = tuple(values.shape)
        # All trailing dimensions that the box covers whole, and the one before them, are consecutive.
        split = len(local)
        while split and local[split - 1] == self.shape[split - 1]:
            split -= 1
        outer = local[: max(split - 1, 0)]
        strides = [math.prod(self.shape[axis + 1 :]) for axis in range(len(local))]
        base = sum(first * stride for first, stride in zip(self.offset, strides, strict=True))
        starts = torch().full(outer, base, dtype=torch().int64, device="cpu")
        for axis, size in enumerate(outer):
            along = [size if at == axis else 1 for at in range(len(outer))]
            starts += torch().arange(size, device="cpu").view(along) * strides[axis]
        return starts.reshape(-1), values.reshape(math.prod(outer), -1) if values.numel() else values.reshape(0, 0)


def shard_of(given: Any) -> Shard:
    """The shard that a tensor is on this rank: a ``Shard`` as it is, a DTensor by its placements, a plain tensor as whole.

    Replicas: a DTensor's are numbered along the mesh dimensions that replicate it, a plain tensor's by global rank, so that copies
    stay apart. Raises Unplaced for unfinished reductions, uneven strided shards, shapes that don't fit.
    """
    shard = given if isinstance(given, Shard) else _of_dtensor(given) if _is_dtensor(given) else None
    if shard is None:
        shard = Shard(given, (0,) * given.dim(), tuple(given.shape))
    local = tuple(shard.tensor.shape)
    if not len(local) == len(shard.offset) == len(shard.shape):
        raise Unplaced(f"offset {shard.offset} and shape {shard.shape} don't fit a tensor of shape {local}")
    if any(first + size > whole for first, size, whole in zip(shard.offset, local, shard.shape, strict=True) if size):
        raise Unplaced(f"a piece of shape {local} at {shard.offset} reaches beyond shape {shard.shape}")
    return shard if shard.replica is not None else shard._replace(replica=_rank() if not isinstance(given, Shard) else 0)


def _rank() -> int:
    distributed = getattr(torch(), "distributed", None)
    return int(distributed.get_rank()) if distributed is not None and distributed.is_available() and distributed.is_initialized() else 0


def _is_dtensor(given: Any) -> bool:
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(given, module.DTensor)


def _of_dtensor(given: Any) -> Shard:
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    mesh, placements, shape = given.device_mesh, given.placements, tuple(given.shape)
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        raise Unplaced("this rank is not in its mesh")
    replica, cuts = 0, [1] * len(shape)
    for size, at, placement in zip(mesh.shape, coordinate, placements, strict=True):
        if placement.is_replicate():
            replica = replica * size + at
        elif placement.is_partial():
            raise Unplaced("its values are partial sums that ranks have not reduced")
        elif getattr(placement, "dim", None) is None:
            raise Unplaced(f"its placement is {placement}")
        else:
            cuts[placement.dim] *= size
    strided = [p for p in placements if type(p).__name__ == "_StridedShard"]
    if any(shape[p.dim] % cuts[p.dim] for p in strided):
        raise Unplaced("its strided shards are uneven: a rank's rows are not consecutive")
    local_shape, offset = compute_local_shape_and_global_offset(given.shape, mesh, placements)
    local = given.to_local()
    if tuple(local.shape) != tuple(local_shape):
        raise Unplaced(f"its local shape is {tuple(local.shape)}, its placements say {tuple(local_shape)}")
    return Shard(local, tuple(int(first) for first in offset), shape, replica)
