"""A sink that keeps what adapters record, laid out row by row, for tests that run without a recorder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from rlaudit import recording
from rlaudit.recording import Padded


def rows_of(batch: Any) -> list[Any]:
    """A batch argument (see ``rlaudit.recording``) as one array a row, padding removed, missing values as NaN."""
    if not isinstance(batch, Padded):
        return [None if row is None else _array(row) for row in batch]
    values, kept = _array(batch.values), None
    if batch.valid is not None:
        values = np.where(_array(batch.valid) != 0, values, np.nan)
    if batch.mask is not None:
        kept = [row != 0 for row in _array(batch.mask)]
    else:
        kept = [np.arange(values.shape[1]) < length for length in np.asarray(batch.lengths)]
    return [row[keep] for row, keep in zip(values, kept, strict=True)]


def _array(values: Any) -> Any:
    if hasattr(values, "detach"):
        values = values.detach().float() if values.is_floating_point() else values.detach()
        return np.array(values.cpu().numpy())
    return np.array([np.nan if value is None else value for value in values]) if isinstance(values, list) else np.array(values)


BATCHES = (
    "prompt_tokens",
    "response_tokens",
    "logprobs",
    "entropies",
    "sampled_mask",
    "loss_mask",
    "input_tokens",
    "output_tokens",
    "experts",
    "weights",
)
SINGULAR = {
    "turns": "turn",
    "starts": "start",
    "ends": "end",
    "rewards": "reward",
    "advantages": "advantage",
    "group_ids": "group_id",
    "finish_reasons": "finish_reason",
    "sequence_ids": "sequence_id",
    "request_ids": "request_id",
}


class CollectingSink:
    """Implements ``rlaudit.recording.Sink``; every table is a list of row dictionaries."""

    def __init__(self) -> None:
        self.rollouts: list[dict[str, Any]] = []
        self.scores: list[dict[str, Any]] = []
        self.routing: list[dict[str, Any]] = []
        self.requests: list[dict[str, Any]] = []
        self.links: list[dict[str, Any]] = []
        self.weights: list[dict[str, Any]] = []
        self.metrics: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []
        self.steps: list[int] = []

    def record_rollout(self, **columns: Any) -> None:
        self.rollouts += _rows(len(columns["sequence_ids"]), columns)

    def record_scores(self, **columns: Any) -> None:
        self.scores += _rows(len(columns["sequence_ids"]), columns)

    def record_routing(self, **columns: Any) -> None:
        columns["layer_ids"] = tuple(columns["layer_ids"])
        self.routing += _rows(len(columns["sequence_ids"]), columns)

    def record_request(self, **columns: Any) -> None:
        self.requests += _rows(len(columns["request_ids"]), columns)

    def record_links(self, **columns: Any) -> None:
        self.links += _rows(len(columns["sequence_ids"]), columns)

    def record_weights(self, **columns: Any) -> None:
        self.weights.append(columns)

    def record_metrics(self, **columns: Any) -> None:
        self.metrics.append(columns)

    def record_event(self, **columns: Any) -> None:
        self.events.append(columns)

    def step(self, step: int) -> None:
        self.steps.append(step)

    def wants(self, what: str) -> bool:
        return what != "routing_weights"


def _rows(count: int, columns: dict[str, Any]) -> list[dict[str, Any]]:
    spread: dict[str, list[Any]] = {}
    for name, value in columns.items():
        if name in BATCHES:
            spread[name] = rows_of(value)
        elif isinstance(value, Sequence) and not isinstance(value, (str, tuple)):
            spread[SINGULAR.get(name, name)] = list(value)
        else:
            spread[SINGULAR.get(name, name)] = [value] * count
    assert all(len(values) == count for values in spread.values()), {name: len(values) for name, values in spread.items()}
    return [{name: values[row] for name, values in spread.items()} for row in range(count)]


@contextmanager
def collecting() -> Iterator[CollectingSink]:
    """Install a collecting sink for a block."""
    sink = CollectingSink()
    recording.set_sink(sink)
    try:
        yield sink
    finally:
        recording.set_sink(None)
