"""``rlaudit capture -- CMD``: starts the command with capture switched on and stays out of its way.

Exit status, signals, input and output are the command's own. Meanwhile, and after it ended, the launcher turns
the spools that its processes have sealed into Parquet.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlaudit.capture.config import CaptureConfig
from rlaudit.capture.options import CaptureOptions
from rlaudit.capture.run_folder import Place, prepare
from rlaudit.capture.site_folder import SITE_FOLDER
from rlaudit.capture.variables import DISABLE_VARIABLE, VARIABLE
from rlaudit.errors import BadOption, RlauditError

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_FROM_KERNEL = 128
"""si_code SI_KERNEL: a signal typed at the terminal, which the whole process group got already (signal(7), sigaction(2))."""
COMPACT_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Captured:
    """What a captured command left: its return code as ``subprocess`` gives it (negative: killed by that signal) and the run."""

    returncode: int
    run: Path


class CommandNotFound(RlauditError):
    """The command to capture doesn't exist; exit status 127, as a shell's."""

    exit_status = 127


class CommandNotExecutable(RlauditError):
    """The command to capture can't be executed; exit status 126, as a shell's."""

    exit_status = 126


def launch(options: CaptureOptions, command: Sequence[str]) -> Captured:
    """Run ``command`` under capture and wait for it.

    RunExists for a folder that holds something already, BadOption, CommandNotFound, CommandNotExecutable; all before
    anything was started. Prints one line at the start, to standard error, where the command's own output isn't disturbed.
    """
    options.check()
    tables = options.tables()
    if not command:
        raise BadOption("give the command to capture after --, for example: rlaudit capture -- python train.py")
    _check_executable(command[0])
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
        flush_seconds=recorded["flush_seconds"],
    )
    sys.stderr.write(_start_line(place, tables) + "\n")
    sys.stderr.flush()
    place.record.exit_status = _run(command, _environment(config), place.folder)
    place.record.ended = time.time()
    _finish(place)
    return Captured(place.record.exit_status, place.folder)


def exit_like(returncode: int) -> None:
    """End this process as the command ended: with its status, or by the signal that killed it."""
    if returncode >= 0:
        sys.exit(returncode)
    number = -returncode
    sys.stdout.flush()
    sys.stderr.flush()
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    os.kill(os.getpid(), number)
    sys.exit(128 + number)  # reached only by a signal whose default is to be ignored


def _check_executable(program: str) -> None:
    if shutil.which(program) is not None:
        return
    if os.sep in program and Path(program).exists():
        raise CommandNotExecutable(
            f"{program} is not executable; start it by its interpreter (bash {program}, python {program}) or make it so (chmod +x)"
        )
    raise CommandNotFound(f"{program}: command not found")


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
    where = f"rlaudit: capturing into {_shown(place.folder)}{part}{off}"
    return f"{where} · hooks armed: {', '.join(armed)} · about 9 bytes a token and source{routing}"


def _shown(folder: Path) -> str:
    return os.path.relpath(folder) if folder.is_relative_to(Path.cwd()) else str(folder)


def _run(command: Sequence[str], environment: Mapping[str, str], folder: Path) -> int:
    """Start the command, pass signals on, convert sealed spools; returns its return code."""
    watched = {*FORWARDED, signal.SIGCHLD}
    old = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    try:
        # The command starts with the mask that this process had; Popen itself may not be interrupted half-way.
        process = subprocess.Popen(
            command,
            env=environment,
            preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, old) and None,  # noqa: PLW1509  (no thread of ours yet)
        )
        stop = threading.Event()
        converter = threading.Thread(target=_convert_while_running, args=(folder, stop), name="rlaudit-converter", daemon=True)
        converter.start()
        while process.poll() is None:
            arrived = signal.sigtimedwait(watched, 0.5)
            if arrived is not None and arrived.si_signo != signal.SIGCHLD and arrived.si_code != _FROM_KERNEL:
                process.send_signal(arrived.si_signo)
        stop.set()
        converter.join()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old)
    return process.returncode


def _convert_while_running(folder: Path, stop: threading.Event) -> None:
    while not stop.wait(COMPACT_SECONDS):
        try:
            sealed = [p for p in sorted((folder / "spool").glob("*.spool")) if not p.stem.endswith("_000000")]
            if sealed:
                from rlaudit.capture.conversion import convert_and_remove

                for spool in sealed:
                    convert_and_remove(spool, folder)
            _note_usage(folder)
        except Exception as error:  # conversion is tried again at the end; capture itself is not touched by this
            sys.stderr.write(f"rlaudit: spools are kept as they are for now ({type(error).__name__}: {error})\n")
            return


def _note_usage(folder: Path) -> None:
    """Bytes that the run takes without the spools still open, for processes that have to keep ``--max-bytes``."""
    used = sum(p.stat().st_size for p in folder.rglob("*") if p.suffix in (".parquet", ".spool"))
    temporary = folder / "spool" / f".usage.{os.getpid()}"
    temporary.write_text(str(used), encoding="ascii")
    temporary.replace(folder / "spool" / ".usage")


def _finish(place: Place) -> None:
    """Convert what is left and complete the records; what can't be converted stays, and the reader reads it from there."""
    from rlaudit.capture.conversion import convert_leftovers, describe_environment

    try:
        convert_leftovers(place.folder)
        place.record.write(place.folder)
        if place.created:
            place.manifest.ended, place.manifest.exit_status = place.record.ended, place.record.exit_status
            describe_environment(place.manifest, place.folder)
            place.manifest.write(place.folder)
    except (OSError, RlauditError) as error:
        reason = getattr(error, "strerror", None) or error
        sys.stderr.write(
            f"rlaudit: the run in {place.folder} could not be completed ({reason}); what was captured is kept and can be read\n"
        )
