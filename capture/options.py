"""The options of ``rlaudit capture``, checked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlaudit import schema
from rlaudit.errors import BadOption


@dataclass(frozen=True, slots=True)
class CaptureOptions:
    """Options of ``rlaudit capture``.

    out: run folder, None for a new one under ``runs/``. include: tables to record, None for all. exclude: tables not to record.
    sample, routing_sample: shares of prompts in (0, 1]. max_bytes: bound of the run on disk. tokens: plain or hashed.
    lossless: wait where the queue is full. queue_bytes: bound of what waits for the writer, in each process.
    record_routing, record_logprobs: ask engines for routed experts and log-probabilities that the command itself did not ask for.
    checksum_weights: checksums of parameters at every weight synchronisation. probe: engines score a fixed sequence after each.
    flush_seconds: what was recorded is turned into Parquet at least this often. resume: go on in a run, as its next attempt.
    """

    out: Path | None = None
    include: tuple[str, ...] | None = None
    exclude: tuple[str, ...] = ()
    sample: float = 1.0
    routing_sample: float = 1.0
    max_bytes: int | None = None
    tokens: str = "plain"
    lossless: bool = False
    queue_bytes: int = 1 << 30
    routing_weights: bool = False
    record_routing: bool = False
    record_logprobs: bool = False
    checksum_weights: bool = False
    probe: bool = False
    flush_seconds: float = 300.0
    resume: bool = False

    def tables(self) -> tuple[str, ...]:
        """The tables to record; events always are. BadOption for an unknown one."""
        names = [table.name for table in schema.TABLES]
        for name in (*(self.include or ()), *self.exclude):
            if name not in names:
                raise BadOption(f"there is no table {name!r}; tables are {', '.join(names)}")
        chosen = [name for name in (self.include or names) if name not in self.exclude]
        return tuple(name for name in names if name in chosen or name == "events")

    def check(self) -> None:
        """BadOption for values out of range."""
        for name, share in (("--sample", self.sample), ("--routing-sample", self.routing_sample)):
            if not 0.0 < share <= 1.0:
                raise BadOption(f"{name} is a share of prompts, above 0 and at most 1; got {share}")
        if self.tokens not in ("plain", "hashed"):
            raise BadOption(f"--tokens is plain or hashed, not {self.tokens!r}")
        if self.max_bytes is not None and self.max_bytes <= 0:
            raise BadOption(f"--max-bytes must be positive; got {self.max_bytes}")
        if self.flush_seconds <= 0:
            raise BadOption(f"--flush-seconds must be positive; got {self.flush_seconds}")
        if self.resume and self.out is None:
            raise BadOption("--resume needs --out RUN: which run to go on in")

    def recorded(self) -> dict[str, Any]:
        """What the manifest says of them: everything that decides which rows a run holds."""
        return {
            "tables": list(self.tables()),
            "sample": self.sample,
            "routing_sample": self.routing_sample,
            "max_bytes": self.max_bytes,
            "tokens": self.tokens,
            "lossless": self.lossless,
            "queue_bytes": self.queue_bytes,
            "routing_weights": self.routing_weights,
            "record_routing": self.record_routing,
            "record_logprobs": self.record_logprobs,
            "checksum_weights": self.checksum_weights,
            "probe": self.probe,
            "flush_seconds": self.flush_seconds,
        }
