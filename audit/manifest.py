"""The manifest: what a run is, in one JSON file beside its tables.

The launcher writes it at the start (so that a run that dies is still readable) and again at the end.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from rlaudit.errors import DamagedRun, UnknownFormat
from rlaudit.schema import FORMAT_VERSION

FILE_NAME = "manifest.json"
LAUNCHERS = "launchers"
"""Folder of the launchers' own records, one JSON file each: host, process id, attempt, command, start, end, exit status."""


@dataclass(slots=True)
class Manifest:
    """Facts about a run. Times are seconds since the epoch; None means unknown or not yet.

    job: the id that launchers of one job share (``slurm:4711``), None without one. command: arguments with what looks like a
    secret replaced. environment: an allow-list, likewise. options: the capture options. packages: distribution to version, as seen by
    the processes that emitted.
    settings: framework and engine settings that move numbers (attention backend, dtypes, ...).
    devices: what the emitting processes saw. attempts: number of starts, 1 for a run never resumed.
    """

    run_id: str
    job: str | None = None
    command: list[str] = field(default_factory=list)
    working_directory: str | None = None
    started: float | None = None
    ended: float | None = None
    exit_status: int | None = None
    hosts: list[str] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    packages: dict[str, str] = field(default_factory=dict)
    devices: list[str] = field(default_factory=list)
    git: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    attempts: int = 1
    rlaudit_version: str | None = None
    format_version: int = FORMAT_VERSION

    def to_json(self) -> str:
        """The file's text."""
        return json.dumps(asdict(self), indent=2, sort_keys=True) + "\n"

    def write(self, folder: Path) -> None:
        """Replace the manifest of the run in ``folder``, complete or not at all."""
        self._write_temporary(folder).replace(folder / FILE_NAME)

    def create(self, folder: Path) -> bool:
        """Write the manifest where the folder has none; False where it has one (another launcher was first)."""
        temporary = self._write_temporary(folder)
        try:
            os.link(temporary, folder / FILE_NAME)
        except FileExistsError:
            return False
        finally:
            temporary.unlink()
        return True

    def _write_temporary(self, folder: Path) -> Path:
        temporary = folder / f".{FILE_NAME}.{os.getpid()}.tmp"
        with temporary.open("w", encoding="utf-8") as file:
            file.write(self.to_json())
            file.flush()
            os.fsync(file.fileno())
        return temporary

    @classmethod
    def from_json(cls, text: str, where: str) -> Manifest:
        """Read a manifest's text. UnknownFormat for another format version, DamagedRun for text that is none."""
        try:
            data = json.loads(text)
            version = data["format_version"]
            run_id = data["run_id"]
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedRun(f"{where} is not a run's manifest ({type(error).__name__}: {error}); restore it from a copy") from error
        if version != FORMAT_VERSION:
            raise UnknownFormat(
                f"{where} has run format version {version}; this rlaudit reads version {FORMAT_VERSION}. "
                + (
                    "Install a newer rlaudit."
                    if isinstance(version, int) and version > FORMAT_VERSION
                    else "Convert it with the rlaudit that wrote it."
                )
            )
        known = {f.name for f in fields(cls)}
        return cls(**{name: value for name, value in data.items() if name in known and name != "run_id"}, run_id=run_id)
