"""Who this process is: what is written once at the head of every spool. Standard library only."""

from __future__ import annotations

import os
import socket
import time
from typing import Any


def process_facts(attempt: int) -> dict[str, Any]:
    """Columns that are equal for all rows of this process: host, rank (None where RANK is not set), process, attempt."""
    host = "".join(c if c.isalnum() or c in "-." else "-" for c in socket.gethostname()) or "host"
    rank = os.environ.get("RANK", "")
    return {
        "host": host,
        "rank": int(rank) if rank.isdigit() else None,
        "process": f"{host}-{os.getpid()}-{time.time_ns() // 1000:x}",
        "attempt": attempt,
    }
