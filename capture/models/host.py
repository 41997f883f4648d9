"""Copies of a device's tensors on the host, made in stream order and without waiting for the device."""

from __future__ import annotations

import sys
from typing import Any


def torch() -> Any:
    """The torch module of this process.

    Adapters attach to modules that have imported torch, so it is there; ``rlaudit hooks`` imports the
    adapters in environments without torch, so they may not import it themselves.
    """
    return sys.modules["torch"]


def host_copy(tensor: Any, dtype: Any = None) -> Any:
    """A copy of ``tensor`` in host memory, cast to ``dtype`` where one is given; never shares memory with it.

    From CUDA and ROCm devices the copy goes to pinned memory behind the work already queued on the
    current stream: read it only after ``mark(tensor.device)`` made later has been waited for.
    """
    source = tensor.detach()
    cast = source if dtype is None or source.dtype == dtype else source.to(dtype)
    if cast.device.type == "cuda":
        return cast.to("cpu", non_blocking=True)
    if cast.device.type != "cpu":
        return cast.to("cpu")
    return cast.clone() if cast is source else cast


def mark(device: Any) -> Any:
    """An event behind everything queued on ``device``'s current stream; None where copies are immediate."""
    if device is None or device.type != "cuda":
        return None
    event = torch().cuda.Event()
    event.record(torch().cuda.current_stream(device))
    return event
