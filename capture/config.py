"""What a captured process is told: the options of ``rlaudit capture``, carried in one environment variable.

Read by processes that record something; the others look at no more than its head (``rlaudit.capture.variables``).
"""

from __future__ import annotations

import json
from typing import NamedTuple


class CaptureConfig(NamedTuple):
    """Settings of the recorder in every captured process.

    run: absolute path of the run's folder. run_id: what sampling is keyed by, equal in all launchers of a job.
    tables: names of the tables to record. sample, routing_sample: shares of
    prompts whose rows, and whose routing, are kept. max_bytes: bound of the run on disk, None for none.
    token_key: hexadecimal key under ``--tokens hashed``, None for plain ids. queue_bytes: bound of what waits for the writer.
    lossless: wait where the queue is full instead of dropping. routing_weights: record gate weights too.
    record_routing, record_logprobs: ask engines for what the command did not ask them for. checksum_weights: checksums of parameters at
    every weight synchronisation. probe: engines score a fixed sequence after each.
    flush_seconds: seal the spool at least this often.
    """

    run: str
    run_id: str
    tables: tuple[str, ...]
    attempt: int = 0
    sample: float = 1.0
    routing_sample: float = 1.0
    max_bytes: int | None = None
    token_key: str | None = None
    queue_bytes: int = 1 << 30
    lossless: bool = False
    routing_weights: bool = False
    record_routing: bool = False
    record_logprobs: bool = False
    checksum_weights: bool = False
    probe: bool = False
    flush_seconds: float = 300.0

    def to_variable(self) -> str:
        """The environment variable's value; ``run`` and ``attempt`` come first, where every process finds them."""
        return json.dumps({"run": self.run, "attempt": self.attempt, **self._asdict()}, separators=(",", ":"))

    @classmethod
    def from_variable(cls, text: str) -> CaptureConfig:
        """Read the variable's value; ValueError or TypeError where it is none."""
        data = json.loads(text)
        data["tables"] = tuple(data["tables"])
        return cls(**data)
