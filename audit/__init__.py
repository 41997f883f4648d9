"""rlaudit: do the rollout engine and the trainer compute the same policy?

``rlaudit.Run`` reads a captured run; ``rlaudit.record_*`` write one from a hand-written loop.
Importing this package imports nothing heavy: it happens inside training processes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlaudit.recording import (
    Packed,
    Padded,
    capturing,
    record_event,
    record_links,
    record_metrics,
    record_request,
    record_rollout,
    record_routing,
    record_scores,
    record_weights,
    step,
)

if TYPE_CHECKING:
    from rlaudit.run import Run

__version__ = "0.1.0"

__all__ = [
    "Packed",
    "Padded",
    "Run",
    "__version__",
    "capturing",
    "record_event",
    "record_links",
    "record_metrics",
    "record_request",
    "record_rollout",
    "record_routing",
    "record_scores",
    "record_weights",
    "step",
]


def __getattr__(name: str) -> Any:
    # Run needs pyarrow and duckdb, which a training process must not pay for.
    if name == "Run":
        from rlaudit.run import Run

        return Run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
