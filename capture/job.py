"""Which job a launcher belongs to: the id by which launchers on several nodes, or after a restart, find the same run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

VARIABLES = (
    ("RLAUDIT_JOB_ID", "rlaudit"),
    ("TORCHELASTIC_RUN_ID", "torchelastic"),
    ("SLURM_JOB_ID", "slurm"),
    ("PBS_JOBID", "pbs"),
    ("LSB_JOBID", "lsf"),
    ("FLUX_JOB_ID", "flux"),
)
"""Environment variables that carry a job's id, equal on all its nodes, most specific first."""
RENDEZVOUS_OPTIONS = ("--rdzv-id", "--rdzv_id")


def job_identity(command: Sequence[str], environment: Mapping[str, str]) -> str | None:
    """The job's id with its source (``slurm:4711``); None for a command that nothing tells apart from others.

    The user's own variable comes first, then torchrun's rendezvous id on the command line, then the scheduler's.

    >>> job_identity(["torchrun", "--rdzv-id=a1", "train.py"], {"SLURM_JOB_ID": "7"})
    'rendezvous:a1'
    >>> job_identity(["bash", "run.sh"], {"SLURM_JOB_ID": "7"})
    'slurm:7'
    >>> job_identity(["bash", "run.sh"], {}) is None
    True
    """
    own = environment.get(VARIABLES[0][0])
    if own:
        return f"{VARIABLES[0][1]}:{own}"
    rendezvous = _rendezvous_id(command)
    if rendezvous is not None:
        return f"rendezvous:{rendezvous}"
    for name, source in VARIABLES[1:]:
        if environment.get(name):
            return f"{source}:{environment[name]}"
    return None


def _rendezvous_id(command: Sequence[str]) -> str | None:
    for place, word in enumerate(command):
        name, equals, value = word.partition("=")
        if name in RENDEZVOUS_OPTIONS:
            found = value if equals else command[place + 1] if place + 1 < len(command) else ""
            return found if found and found != "none" else None  # "none" is torchrun's default
    return None
