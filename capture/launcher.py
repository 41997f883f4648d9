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
from typing import Any

from rlaudit import __version__, schema
from rlaudit.capture.config import DISABLE_VARIABLE, VARIABLE, CaptureConfig
from rlaudit.capture.environment import allowed_environment, redact_arguments
from rlaudit.capture.site_folder import SITE_FOLDER
from rlaudit.errors import BadOption, RlauditError, RunExists
from rlaudit.manifest import FILE_NAME, Manifest

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_FROM_KERNEL = 128
"""si_code SI_KERNEL: a signal typed at the terminal, which the whole process group got already (signal(7), sigaction(2))."""
COMPACT_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class CaptureOptions:
    """Options of ``rlaudit capture``.

    out: run folder, None for a new one under ``runs/``. include: tables to record, None for all. exclude: tables not to record.
    sample, routing_sample: shares of prompts in (0, 1]. max_bytes: bound of the run on disk. tokens: plain or hashed.
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
    folder = _new_folder(options.out)
    config = CaptureConfig(
        run=str(folder),
        run_id=f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(4)}",
        tables=tables,
        sample=options.sample,
        routing_sample=options.routing_sample,
        max_bytes=options.max_bytes,
        token_key=_token_key(options),
        queue_bytes=options.queue_bytes,
        lossless=options.lossless,
        routing_weights=options.routing_weights,
    )
    manifest = _first_manifest(config, options, command)
    _write_first(manifest, folder)
    sys.stderr.write(_start_line(folder, tables) + "\n")
    sys.stderr.flush()
    returncode = _run(command, _environment(config), folder)
    manifest.ended = time.time()
    manifest.exit_status = returncode
    _finish(manifest, folder)
    return Captured(returncode, folder)


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


def _new_folder(out: Path | None) -> Path:
    folder = (out if out is not None else Path("runs", f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}")).expanduser().absolute()
    if folder.exists():
        if not folder.is_dir():
            raise RunExists(f"{folder} is a file; give a folder that doesn't exist yet")
        if any(folder.iterdir()):
            what = "another run" if (folder / FILE_NAME).exists() else "other files"
            raise RunExists(
                f"{folder} holds {what} already; nothing was started. Choose another --out, or remove the folder if its contents may go"
            )
    return folder


def _write_first(manifest: Manifest, folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)  # token ids and prompts are the user's own
        (folder / "spool").mkdir(exist_ok=True)
        manifest.write(folder)
    except OSError as error:
        raise BadOption(
            f"the run's folder {folder} can't be written ({error.strerror}); nothing was started. Choose another --out"
        ) from error


def _token_key(options: CaptureOptions) -> str | None:
    if options.tokens == "plain":
        return None
    # Several launchers of one job must share a key; a key from the user's environment makes them.
    return os.environ.get("RLAUDIT_TOKEN_KEY") or secrets.token_hex(32)


def _first_manifest(config: CaptureConfig, options: CaptureOptions, command: Sequence[str]) -> Manifest:
    return Manifest(
        run_id=config.run_id,
        command=redact_arguments(list(command)),
        working_directory=str(Path.cwd()),
        started=time.time(),
        hosts=[os.uname().nodename],
        environment=allowed_environment(),
        git=_git(),
        rlaudit_version=__version__,
        options={
            "tables": list(config.tables),
            "sample": config.sample,
            "routing_sample": config.routing_sample,
            "max_bytes": config.max_bytes,
            "tokens": options.tokens,
            "lossless": config.lossless,
            "queue_bytes": config.queue_bytes,
            "routing_weights": config.routing_weights,
        },
    )


def _git() -> dict[str, Any]:
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


def _environment(config: CaptureConfig) -> dict[str, str]:
    environment = {**os.environ, VARIABLE: config.to_variable()}
    before = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = f"{SITE_FOLDER}{os.pathsep}{before}" if before else SITE_FOLDER
    return environment


def _start_line(folder: Path, tables: Sequence[str]) -> str:
    from rlaudit.capture.registry import TRIGGERS

    armed = sorted({module.rsplit(".", 1)[-1] for modules in TRIGGERS.values() for module in modules})
    off = " (switched off by RLAUDIT_DISABLE)" if os.environ.get(DISABLE_VARIABLE) == "1" else ""
    routing = " + MoE layers x top-k for routing" if "routing" in tables else ""
    return f"rlaudit: capturing into {_shown(folder)}{off} · hooks armed: {', '.join(armed)} · about 9 bytes a token and source{routing}"


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
            sealed = [p for p in sorted((folder / "spool").glob("*.spool")) if p.stat().st_size >= 1 << 20]
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


def _finish(manifest: Manifest, folder: Path) -> None:
    """Convert what is left and complete the manifest; what can't be converted stays, and the reader reads it from there."""
    from rlaudit.capture.conversion import convert_leftovers, describe_environment

    try:
        convert_leftovers(folder)
        describe_environment(manifest, folder)
        manifest.write(folder)
    except OSError as error:
        sys.stderr.write(
            f"rlaudit: the run in {folder} could not be completed ({error.strerror or error}); what was captured is kept and can be read\n"
        )
