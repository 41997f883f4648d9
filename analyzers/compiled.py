"""The compiled routing kernels: numba machine code, made once and kept on disk.

Numba keeps it beside the source, in ``NUMBA_CACHE_DIR``, or in the user's cache folder where the source can't be written. It is imported
on first use only: loading takes about a second and compiling several, which is worth it for large routing tables and for nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from rlaudit.analyzers import routing_kernel

_HELPERS: tuple[Callable[..., Any], ...] = (
    routing_kernel.zero_bytes,
    routing_kernel.load,
    routing_kernel.has_duplicate,
    routing_kernel.common,
    routing_kernel.count_row,
)


class Kernels(NamedTuple):
    """Functions of ``routing_kernel``: for one-byte ids with top_k <= 8, and for all others."""

    overlap_bytes: Callable[..., None]
    overlap_any: Callable[..., None]


def vectorised() -> Kernels:
    """Whole-array operations: nothing to load or compile, quicker for small tables."""
    return Kernels(routing_kernel.overlap_vectorised, routing_kernel.overlap_vectorised)


@cache
def kernels() -> Kernels:
    """The kernels, from numba's cache where it holds them, else compiled now (several seconds, once a machine). They release the
    interpreter lock."""
    made = _dispatchers()
    for name, dispatcher in made.items():
        for signature in _signatures()[name]:
            dispatcher.compile(signature)
        dispatcher.disable_compile()
    return Kernels(**made)


def kernels_cached() -> bool:
    """True where ``kernels()`` will find all of them in numba's cache, so that nothing has to be compiled."""
    return all(len(d._cache._cache_file._load_index()) >= len(_signatures()[name]) for name, d in _dispatchers().items())


@cache
def _dispatchers() -> dict[str, Any]:
    import numba
    from numba.extending import register_jitable

    for helper in _HELPERS:
        register_jitable(helper)
    jit = numba.njit(nogil=True, cache=True)
    return {"overlap_bytes": jit(routing_kernel.overlap_bytes), "overlap_any": jit(routing_kernel.overlap_any)}


@cache
def _signatures() -> dict[str, tuple[Any, ...]]:
    """Argument types. Inputs are read-only arrays, since Arrow's buffers are; writable ones convert."""
    from numba import types as t

    def given(kind: Any) -> Any:
        return t.Array(kind, 1, "C", readonly=True)

    bytes_, shorts, numbers = given(t.uint8), given(t.uint16), given(t.int64)
    counts, flags = t.Array(t.int64, 2, "C"), t.Array(t.int8, 1, "C")
    routes = (numbers, numbers, numbers, t.int64, t.int64, numbers, numbers, t.int64, t.int64, counts, flags, numbers)
    return {"overlap_bytes": ((bytes_, bytes_, *routes),), "overlap_any": ((bytes_, bytes_, *routes), (shorts, shorts, *routes))}
