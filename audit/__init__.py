"""rlaudit: do the rollout engine and the trainer compute the same policy?

``rlaudit.Run`` reads a captured run; ``rlaudit.record_*`` write one from a hand-written loop.
Importing this package imports nothing heavy: it happens inside training processes.
"""

from __future__ import annotations

from rlaudit.recording import (
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

TYPE_CHECKING = False  # as typing.TYPE_CHECKING, whose module is slow to import
if TYPE_CHECKING:
    from typing import Any

    from rlaudit.batches import Packed, Padded
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
    if name in ("Packed", "Padded"):
        from rlaudit import batches

        return getattr(batches, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
