"""From the labels and counts that engines give their weights to optimizer steps, by what the trainer said it sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

if TYPE_CHECKING:
    from rlaudit.run import Run


class WeightVersions:
    """The trainer's ``sent`` rows of ``weights``, to look versions up in."""

    def __init__(self, sent: list[dict[str, Any]]) -> None:
        self._known = bool(sent)
        self._labels: dict[tuple[int, str | None], int | None] = {
            (row["attempt"], row["policy_version"]): row["policy_updates"] for row in sent if row["policy_version"] is not None
        }
        self._counts: dict[tuple[int, int], int | None] = {
            (row["attempt"], row["policy_syncs"]): row["policy_updates"] for row in sent if row["policy_syncs"] is not None
        }

    @classmethod
    def of(cls, run: Run) -> WeightVersions:
        """Read them from a run."""
        columns = ("attempt", "policy_version", "policy_syncs", "policy_updates")
        sent = run.read("weights", columns, filters=(pc.field("fact") == "sent") & pc.field("policy_updates").is_valid())
        return cls(sent.to_pylist())

    def updates(self, attempt: int, version: str | None, syncs: int | None) -> int | None:
        """Optimizer steps behind these weights; None where it can't be told. Before the first synchronisation: none."""
        if (attempt, version) in self._labels:
            return self._labels[attempt, version]
        if syncs is None:
            return None
        if (attempt, syncs) in self._counts:
            return self._counts[attempt, syncs]
        return 0 if self._known and syncs == 0 else None
