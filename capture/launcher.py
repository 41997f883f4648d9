"""``rlaudit capture -- CMD``: starts the command with capture switched on and stays out of its way.

Exit status, signals, input and output are the command's own. Meanwhile, and after it ended, the launcher turns
the spools that its processes have sealed into Parquet.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rlaudit.capture.config import CaptureConfig
from rlaudit.capture.options import CaptureOptions
from rlaudit.capture.process import say
from rlaudit.capture.run_folder import Place, prepare
from rlaudit.capture.site_folder import SITE_FOLDER
from rlaudit.capture.supervisor import check_executable, exit_like, run_command
from rlaudit.capture.variables import DISABLE_VARIABLE, VARIABLE
from rlaudit.errors import BadOption, RlauditError
from rlaudit.manifest import FILE_NAME, Manifest

__all__ = ["CaptureOptions", "Captured", "exit_like", "launch"]

CONVERT_SECONDS = 1.0
"""How often sealed spools are looked for while the command runs."""
LONGEST_PAUSE = 60.0
"""Where they can't be converted (a full disk), trying again becomes rarer, up to this."""
ENDING_SECONDS = 5.0
"""How long processes that outlive the command, and are most likely ending, are waited for."""


@dataclass(frozen=True, slots=True)
class Captured:
    """What a captured command left: its return code as ``subprocess`` gives it (negative: killed by that signal) and the run."""

    returncode: int
    run: Path


def launch(options: CaptureOptions, command: Sequence[str]) -> Captured:
    """Run ``command`` under capture and wait for it.

    RunExists for a folder that holds something already, BadOption, CommandNotFound, CommandNotExecutable; all before
    anything was started. Prints one line at the start, to standard error, where the command's own output isn't disturbed.
    """
    options.check()
    tables = options.tables()
    if not command:
        raise BadOption("give the command to capture after --, for example: rlaudit capture -- python train.py")
    check_executable(command[0])
    begun = time.monotonic()
    place = prepare(options, command)
    recorded = place.manifest.options
    config = CaptureConfig(
        run=str(place.folder),
        # Launchers without a shared folder have different runs, but one job: sampling must choose the same prompts in all.
        run_id=place.manifest.job or place.manifest.run_id,
        attempt=place.record.attempt,
        tables=tuple(recorded["tables"]),
        sample=recorded["sample"],
        routing_sample=recorded["routing_sample"],
        max_bytes=recorded["max_bytes"],
        token_key=_token_key(recorded["tokens"]),
        queue_bytes=recorded["queue_bytes"],
        lossless=recorded["lossless"],
        routing_weights=recorded["routing_weights"],
        **{name: recorded.get(name, False) for name in ("record_routing", "record_logprobs", "checksum_weights", "probe")},
        flush_seconds=recorded["flush_seconds"],
    )
    say(_start_line(place, tables))
    try:
        place.record.exit_status = run_command(command, _environment(config), lambda stop: _convert_while_running(place.folder, stop))
    except RlauditError as error:
        place.record.exit_status = error.exit_status
        raise
    finally:
        # Not the clock, which may have been set meanwhile.
        place.record.ended = place.record.started + time.monotonic() - begun
        _finish(place)
    return Captured(place.record.exit_status, place.folder)


def _token_key(tokens: str) -> str | None:
    """Key of the token hashes; from the user's environment where several launchers must share one."""
    return None if tokens == "plain" else os.environ.get("RLAUDIT_TOKEN_KEY") or secrets.token_hex(32)


def _environment(config: CaptureConfig) -> dict[str, str]:
    environment = {**os.environ, VARIABLE: config.to_variable()}
    before = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = f"{SITE_FOLDER}{os.pathsep}{before}" if before else SITE_FOLDER
    return environment


def _start_line(place: Place, tables: Sequence[str]) -> str:
    from rlaudit.capture.registry import TRIGGERS

    armed = sorted({module.rsplit(".", 1)[-1] for modules in TRIGGERS.values() for module in modules})
    off = " (switched off by RLAUDIT_DISABLE)" if os.environ.get(DISABLE_VARIABLE) == "1" else ""
    routing = " + MoE layers x top-k for routing" if "routing" in tables else ""
    part = f" (attempt {place.record.attempt})" if place.record.attempt else "" if place.created else " (joined)"
    where = f"capturing into {_shown(place.folder)}{part}{off}"
    return f"{where} · hooks armed: {', '.join(armed)} · about 9 bytes a token and source{routing}"


def _shown(folder: Path) -> str:
    return os.path.relpath(folder) if folder.is_relative_to(Path.cwd()) else str(folder)


def _convert_while_running(folder: Path, stop: threading.Event) -> None:
    pause = CONVERT_SECONDS
    while not stop.wait(pause):
        try:
            sealed = [p for p in sorted((folder / "spool").glob("*.spool")) if not p.stem.endswith("_000000")]
            if sealed:
                from rlaudit.capture.conversion import convert_and_remove

                for spool in sealed:
                    convert_and_remove(spool, folder)
            _note_usage(folder)
            pause = CONVERT_SECONDS
        except Exception:  # whatever it is (a full disk), it is tried again, and said at the end if it lasts
            pause = min(2 * pause, LONGEST_PAUSE)


def _note_usage(folder: Path) -> None:
    """Bytes that the run takes without the spools still open, for processes that have to keep ``--max-bytes``."""
    used = sum(p.stat().st_size for p in folder.rglob("*") if p.suffix in (".parquet", ".spool"))
    temporary = folder / "spool" / f".usage.{os.getpid()}"
    temporary.write_text(str(used), encoding="ascii")
    temporary.replace(folder / "spool" / ".usage")


def _finish(place: Place) -> None:
    """Convert what is left and complete the records; what can't be converted stays, and the reader reads it from there."""
    from rlaudit.capture.conversion import convert_leftovers, describe_environment, link_calls, wait_for_writers

    try:
        left = wait_for_writers(place.folder, ENDING_SECONDS)
        if left:
            say(
                f"{len(left)} of the command's processes still run ({', '.join(map(str, left[:10]))}{', …' if len(left) > 10 else ''}); "
                "what they record from now on can be read as well, and rlaudit compact makes Parquet of it once they have ended"
            )
        convert_leftovers(place.folder)
        place.record.write(place.folder)
        if place.created:
            text = (place.folder / FILE_NAME).read_text(encoding="utf-8")
            manifest = Manifest.from_json(text, str(place.folder))  # launchers that joined have added to it
            manifest.ended, manifest.exit_status = place.record.ended, place.record.exit_status
            describe_environment(manifest, place.folder)
            manifest.write(place.folder)
            link_calls(place.folder)
    except KeyboardInterrupt:
        say(f"interrupted while completing the run in {place.folder}; what was captured is kept and can be read")
    except Exception as error:  # the command's exit status is owed to the caller, whatever became of the run
        reason = getattr(error, "strerror", None) or error
        say(f"the run in {place.folder} could not be completed ({reason}); what was captured is kept and can be read")
