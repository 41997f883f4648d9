"""Who this process is: what is written once at the head of every spool. Standard library only."""

from __future__ import annotations

import os
import socket
import time
from typing import Any


def is_alive(pid: int) -> bool:
    """True where a process of that id runs on this host."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def host_name() -> str:
    """This host's name in the form that file names and rows carry."""
    return "".join(c if c.isalnum() or c in "-." else "-" for c in socket.gethostname()) or "host"


def process_facts(attempt: int) -> dict[str, Any]:
    """Columns that are equal for all rows of this process: host, rank (None where RANK is not set), process, attempt."""
    host = host_name()
    rank = os.environ.get("RANK", "")
    return {
        "host": host,
        "rank": int(rank) if rank.isdigit() else None,
        "process": f"{host}-{os.getpid()}-{time.time_ns() // 1000:x}",
        # torchrun restarts its workers below one launcher; every restart is an attempt of its own.
        "attempt": attempt + (int(restarts) if (restarts := os.environ.get("TORCHELASTIC_RESTART_COUNT", "")).isdigit() else 0),
    }
