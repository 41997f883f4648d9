"""The folder that a launcher writes into: a new one, one that other launchers of the same job write into, or one to go on in."""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rlaudit import __version__
from rlaudit.capture.environment import allowed_environment, redact_arguments
from rlaudit.capture.job import job_identity
from rlaudit.capture.options import CaptureOptions
from rlaudit.capture.process import is_alive
from rlaudit.errors import BadOption, RlauditError, RunExists
from rlaudit.manifest import FILE_NAME, LAUNCHERS, Manifest


@dataclass(slots=True)
class LauncherRecord:
    """One launcher's part in a run, in a file of its own under ``launchers/``. Times in seconds since the epoch; None: not yet."""

    host: str
    pid: int
    attempt: int
    command: list[str]
    started: float
    ended: float | None = None
    exit_status: int | None = None

    def write(self, folder: Path) -> None:
        """Write or replace the launcher's file."""
        place = folder / LAUNCHERS
        place.mkdir(exist_ok=True)
        temporary = place / f".{self.pid}.tmp"
        temporary.write_text(json.dumps(asdict(self), indent=2), encoding="utf-8")
        temporary.replace(place / f"{self.host}-{self.pid}-{int(self.started * 1000):x}.json")


class Place(NamedTuple):
    """Where to capture: the folder, its manifest, this launcher's record, and whether this launcher made the run."""

    folder: Path
    manifest: Manifest
    record: LauncherRecord
    created: bool


def prepare(options: CaptureOptions, command: Sequence[str]) -> Place:
    """Create the run's folder, or join or go on in the one that is there.

    A folder with another run, or with other files, is refused (RunExists); one that can't be written too (BadOption).
    Launchers of the same job (``rlaudit.capture.job``) meet in one run: the first makes it, the others take its options.
    """
    job = job_identity(command, os.environ)
    folder = _folder(options, job)
    manifest = Manifest(
        run_id=f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(4)}",
        job=job,
        command=redact_arguments(list(command)),
        working_directory=str(Path.cwd()),
        started=time.time(),
        hosts=[socket.gethostname()],
        environment=allowed_environment(),
        git=git_state(),
        rlaudit_version=__version__,
        options=options.recorded(),
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _refuse_foreign(folder)
        created = manifest.create(folder)
        if created:
            folder.chmod(0o700)  # token ids and prompts are the user's own
        attempt = 0
        if not created:
            manifest = _existing(folder, options, job)
            attempt = _attempt(folder, options)
            if attempt >= manifest.attempts:
                manifest.attempts = attempt + 1
                manifest.write(folder)
        started = manifest.started if created and manifest.started is not None else time.time()
        record = LauncherRecord(socket.gethostname(), os.getpid(), attempt, redact_arguments(list(command)), started)
        (folder / "spool").mkdir(exist_ok=True)
        record.write(folder)
    except OSError as error:
        raise BadOption(
            f"the run's folder {folder} can't be written ({error.strerror}); nothing was started. Choose another --out"
        ) from error
    return Place(folder, manifest, record, created)


def _folder(options: CaptureOptions, job: str | None) -> Path:
    if options.out is not None:
        return options.out.expanduser().absolute()
    # Launchers of one job have nothing but the job's id to agree on a name by.
    name = re.sub(r"[^\w.-]+", "-", job) if job else f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    return Path("runs", name).absolute()


def _refuse_foreign(folder: Path) -> None:
    if not folder.is_dir():
        raise RunExists(f"{folder} is a file; give a folder that doesn't exist yet")
    if not (folder / FILE_NAME).exists() and any(not path.name.startswith(f".{FILE_NAME}") for path in folder.iterdir()):
        raise RunExists(
            f"{folder} holds other files already; nothing was started. Choose another --out, or remove the folder if its contents may go"
        )


def _existing(folder: Path, options: CaptureOptions, job: str | None) -> Manifest:
    """The manifest of the run in ``folder``, where this launcher may write into it."""
    path = folder / FILE_NAME
    manifest = Manifest.from_json(path.read_text(encoding="utf-8"), str(path))
    if not options.resume and (job is None or job != manifest.job):
        raise RunExists(
            f"{folder} holds another run already; nothing was started. Choose another --out, go on in it as its next attempt "
            "with --resume, or remove the folder if its contents may go"
        )
    if manifest.options.get("tokens") == "hashed" and not os.environ.get("RLAUDIT_TOKEN_KEY"):
        raise BadOption(f"{folder} keeps hashed tokens: set RLAUDIT_TOKEN_KEY to the same value for every launcher of this run")
    return manifest


def _attempt(folder: Path, options: CaptureOptions) -> int:
    """Which attempt this launcher starts: the current one where others of the job are in it, the next one after a restart.

    A restart shows in a launcher of the current attempt on this host that is over. Slurm says it itself (``SLURM_RESTART_COUNT``).
    """
    records = [json.loads(path.read_text(encoding="utf-8")) for path in (folder / LAUNCHERS).glob("*.json")]
    restarts = os.environ.get("SLURM_RESTART_COUNT", "")
    if restarts.isdigit() and not options.resume:
        return int(restarts)
    current = max((record["attempt"] for record in records), default=0)
    own = [record for record in records if record["host"] == socket.gethostname() and record["attempt"] == current]
    if options.resume or (own and all(record["ended"] is not None or not is_alive(record["pid"]) for record in own)):
        return _last_attempt(folder, records) + 1
    return current


def _last_attempt(folder: Path, records: Sequence[dict[str, Any]]) -> int:
    """The highest attempt so far; torchrun's own restarts count, which only the recorded rows know."""
    from rlaudit.run import Run

    try:
        seen = [value for value in Run.open(folder).read("events", ["attempt"])["attempt"].to_pylist() if value is not None]
    except RlauditError:
        seen = []  # an unreadable segment must not keep training from going on; the launchers' records still count
    return max([record["attempt"] for record in records] + seen, default=0)


def git_state() -> dict[str, Any]:
    """Commit of the working directory and whether it has changes; empty where it is no repository."""

    def ask(*arguments: str) -> str | None:
        try:
            done = subprocess.run(["git", *arguments], capture_output=True, text=True, timeout=5, check=True)
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout.strip()

    commit = ask("rev-parse", "HEAD")
    if commit is None:
        return {}
    return {"commit": commit, "changed": bool(ask("status", "--porcelain", "--untracked-files=no"))}
