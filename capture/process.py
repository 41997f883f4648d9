"""Who this process is: what is written once at the head of every spool. Standard library only, and little of that."""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False  # as typing.TYPE_CHECKING, whose module is slow to import
if TYPE_CHECKING:
    from typing import Any


def say(text: str) -> None:
    """One line to standard error. Where nobody can read it (closed, a broken pipe), nothing: the program must not notice."""
    try:
        sys.stderr.write(f"rlaudit: {text}\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):  # AttributeError: without standard error, sys.stderr is None
        return


def is_alive(pid: int) -> bool:
    """True where a process of that id runs on this host; False for one that has ended and waits for its parent to notice."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123  (no pathlib at start-up)
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except (OSError, IndexError):
        return True  # no /proc here, or it ended just now: the next look will tell


def host_name() -> str:
    """This host's name in the form that file names and rows carry."""
    return "".join(c if c.isalnum() or c in "-." else "-" for c in os.uname().nodename) or "host"


def process_facts(attempt: int) -> dict[str, Any]:
    """Columns that are equal for all rows of this process: host, rank (None where RANK is not set), process, attempt."""
    host = host_name()
    return {
        "host": host,
        "rank": _number("RANK"),
        "process": f"{host}-{os.getpid()}-{time.time_ns() // 1000:x}",
        # torchrun restarts its workers below one launcher; every restart is an attempt of its own.
        "attempt": attempt + (_number("TORCHELASTIC_RESTART_COUNT") or 0),
    }


def current_rank() -> int | None:
    """This process's global rank: RANK, otherwise from ``torch.distributed`` where that is initialised; None outside a distributed job."""
    rank = _number("RANK")
    return rank if rank is not None else _torch_ranks().get("rank")


def rank_facts() -> dict[str, Any]:
    """What this process knows of the ranks that it is one of; empty outside a distributed job.

    rank and world_size; where known local_rank, local_world_size, group_rank (the node's), group_world_size (nodes), and ``job``,
    by which the ranks of one job are told from others: torchrun's run id, or the rendezvous address. From the environment
    (torchrun, accelerate, DeepSpeed); otherwise from ``torch.distributed`` where that is initialised.
    """
    names = ("rank", "world_size", "local_rank", "local_world_size", "group_rank", "group_world_size")
    facts = {name: value for name in names if (value := _number(name.upper())) is not None}
    if "rank" not in facts or "world_size" not in facts:
        facts |= _torch_ranks()
    if "rank" not in facts or "world_size" not in facts:
        return {}
    run_id = os.environ.get("TORCHELASTIC_RUN_ID", "")
    address = f"{os.environ.get('MASTER_ADDR', '')}:{os.environ.get('MASTER_PORT', '')}"
    return {**facts, "job": address if run_id in ("", "none") else run_id}


def _torch_ranks() -> dict[str, int]:
    distributed = sys.modules.get("torch.distributed")
    try:
        if distributed is None or not distributed.is_available() or not distributed.is_initialized():
            return {}
        return {"rank": distributed.get_rank(), "world_size": distributed.get_world_size()}
    except (AttributeError, RuntimeError, ValueError):
        return {}  # it is being imported or torn down in another thread


def _number(variable: str) -> int | None:
    text = os.environ.get(variable, "")
    return int(text) if text.isdigit() else None


def started_facts() -> dict[str, Any]:
    """What the note says that a process leaves at its start."""
    return {
        "executable": sys.executable,
        "program": _program(),
        "python": sys.version.split()[0],
        "pid": os.getpid(),
        "parent": os.getppid(),
        **({"ranks": ranks} if (ranks := rank_facts()) else {}),
    }


def _program() -> str:
    """What runs, without its arguments and without code given on the command line: both may hold secrets.

    A module as ``-m name``, code as ``-c``. sys.argv isn't there yet when site runs.
    """
    arguments: list[str] = list(getattr(sys, "orig_argv", None) or getattr(sys, "argv", None) or [""])
    rest = iter(arguments[1:])
    for argument in rest:
        if argument == "--check-hash-based-pycs":
            next(rest, None)
        elif argument.startswith("-") and len(argument) > 1:
            for place, option in enumerate(argument[1:], 2):
                if option == "c":
                    return _code(argument[place:] or next(rest, ""))
                if option == "m":
                    return f"-m {argument[place:] or next(rest, '')}"
                if option in "WX":
                    if not argument[place:]:
                        next(rest, None)
                    break
        else:
            return argument
    return arguments[0]


def _code(text: str) -> str:
    """``-c``, with the module of multiprocessing where the code is how that starts its processes."""
    start = "from multiprocessing."
    if text.startswith(start):
        return f"-c {start[5:]}{text[len(start) :].split(maxsplit=1)[0]}"
    return "-c"
