"""The compiled kernels: numba machine code, made once and kept on disk.

Numba keeps it beside the source, in ``NUMBA_CACHE_DIR``, or in the user's cache folder where the source can't be written.
Numba is imported on first use: half a second that nobody else need pay.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from rlaudit.analyzers import routing_kernel, token_kernel

_HELPERS: tuple[Callable[..., Any], ...] = (
    token_kernel.bit, token_kernel.absorb, token_kernel.bin_of,
    routing_kernel.zero_bytes, routing_kernel.load, routing_kernel.has_duplicate, routing_kernel.common, routing_kernel.count_row,
)


class Kernels(NamedTuple):
    """Compiled functions of ``token_kernel`` and ``routing_kernel``, under their names. They release the interpreter lock."""

    measure: Callable[..., int]
    reduce_spans: Callable[..., None]
    select: Callable[..., None]
    conditional: Callable[..., None]
    first_difference: Callable[..., None]
    overlap_bytes: Callable[..., None]
    overlap_any: Callable[..., None]


@cache
def kernels() -> Kernels:
    """The kernels, from numba's cache where it holds them, else compiled now (several seconds, once a machine)."""
    made = _dispatchers()
    for name, dispatcher in made.items():
        for signature in _signatures()[name]:
            dispatcher.compile(signature)
        dispatcher.disable_compile()
    return Kernels(**made)


def interpreted() -> Kernels:
    """The same without numba: some microseconds a token, but nothing to load or compile, which is quicker for small runs."""
    return Kernels(
        token_kernel.measure, token_kernel.reduce_spans, token_kernel.select, token_kernel.conditional, token_kernel.first_difference,
        routing_kernel.overlap_vectorised, routing_kernel.overlap_vectorised,
    )


def kernels_cached() -> bool:
    """True where ``kernels()`` will find all of them in numba's cache, so that nothing has to be compiled."""
    return all(len(d._cache._cache_file._load_index()) >= len(_signatures()[name]) for name, d in _dispatchers().items())


@cache
def _dispatchers() -> dict[str, Any]:
    import numba  # noqa: PLC0415
    from numba.extending import register_jitable  # noqa: PLC0415

    for helper in _HELPERS:
        register_jitable(helper)
    jit = numba.njit(nogil=True, cache=True)
    routing = {"overlap_bytes": routing_kernel.overlap_bytes, "overlap_any": routing_kernel.overlap_any}
    return {name: jit(function) for name, function in {**interpreted()._asdict(), **routing}.items()}


@cache
def _signatures() -> dict[str, tuple[Any, ...]]:
    """Argument types. Inputs are read-only arrays, since Arrow's buffers are; writable ones convert."""
    from numba import types as t  # noqa: PLC0415

    def given(kind: Any) -> Any:
        return t.Array(kind, 1, "C", readonly=True)

    def taken(kind: Any, dimensions: int) -> Any:
        return t.Array(kind, dimensions, "C")

    f4, i8, u1, u2, i4 = given(t.float32), given(t.int64), given(t.uint8), given(t.uint16), given(t.int32)
    spans = (f4, u1, t.int64, f4, u1, t.int64, u1, t.int64, i8, i8, i8, i8)
    routes = (i8, i8, i8, t.int64, t.int64, i8, i8, t.int64, t.int64, taken(t.int64, 2), taken(t.int8, 1), i8)
    return {
        "measure": ((*spans, taken(t.float64, 2), taken(t.int64, 2), taken(t.float32, 1), taken(t.float32, 1)),),
        "reduce_spans": ((given_2d(t.float64), given_2d(t.int64), i8, taken(t.float64, 2), taken(t.int64, 2), taken(t.float64, 2)),),
        "select": ((f4, given(t.uint32), i8, taken(t.int64, 1), taken(t.float64, 1)),),
        "conditional": ((*spans, given(t.int8), i8, taken(t.float64, 2)),),
        "first_difference": ((i4, i4, i8, i8, i8, taken(t.int64, 1)),),
        "overlap_bytes": ((u1, u1, *routes),),
        "overlap_any": ((u1, u1, *routes), (u2, u2, *routes)),
    }


def given_2d(kind: Any) -> Any:
    """A read-only matrix's type."""
    from numba import types  # noqa: PLC0415

    return types.Array(kind, 2, "C", readonly=True)
