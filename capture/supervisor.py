"""Runs the captured command as a shell would have run it: with its own signals, status, open files and terminal."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rlaudit.errors import RlauditError

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_FROM_KERNEL = 128
"""si_code SI_KERNEL: a signal typed at the terminal, which the whole process group got already (signal(7), sigaction(2))."""
_SET_PARENT_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG (prctl(2))."""


class CommandNotFound(RlauditError):
    """The command to capture doesn't exist; exit status 127, as a shell's."""

    exit_status = 127


class CommandNotExecutable(RlauditError):
    """The command to capture can't be executed; exit status 126, as a shell's."""

    exit_status = 126


def check_executable(program: str) -> None:
    """CommandNotFound or CommandNotExecutable where ``program`` can't be started."""
    if shutil.which(program) is not None:
        return
    if os.sep in program and Path(program).exists():
        raise CommandNotExecutable(
            f"{program} is not executable; start it by its interpreter (bash {program}, python {program}) or make it so (chmod +x)"
        )
    raise CommandNotFound(f"{program}: command not found")


def run_command(command: Sequence[str], environment: Mapping[str, str], meanwhile: Callable[[threading.Event], None]) -> int:
    """Start the command, pass signals on until it ends; its return code as ``subprocess`` gives it.

    ``meanwhile`` runs in a thread and returns soon after its event is set. Must be called from a thread that lives as long as the
    process does: where that one is killed the command is too, as it would be if it had been started directly.
    """
    watched = {*FORWARDED, signal.SIGCHLD}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    try:
        process = _start(command, environment, mask)
        stop = threading.Event()
        helper = threading.Thread(target=meanwhile, args=(stop,), name="rlaudit-converter", daemon=True)
        helper.start()
        while process.poll() is None:
            arrived = signal.sigtimedwait(watched, 0.5)
            if arrived is not None and arrived.si_signo != signal.SIGCHLD and arrived.si_code != _FROM_KERNEL:
                process.send_signal(arrived.si_signo)
        stop.set()
        helper.join()
        while signal.sigtimedwait(watched, 0) is not None:
            pass  # what arrived while the command was ending was meant for it, too
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return process.returncode


def _start(command: Sequence[str], environment: Mapping[str, str], mask: set[signal.Signals] | set[int]) -> subprocess.Popen[bytes]:
    launcher = os.getpid()
    prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None

    def in_child() -> None:
        # The command starts with the mask that this process had; Popen itself may not be interrupted half-way.
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if prctl is not None:
            # kill -9 of what the user started stops the training, as without capture, and leaves no orphan on the devices.
            prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
            if os.getppid() != launcher:
                os.kill(os.getpid(), signal.SIGKILL)

    def start(words: Sequence[str]) -> subprocess.Popen[bytes]:
        # close_fds=False: file descriptors that the shell opened for the command, as in <(sort data) or 3>log.
        return subprocess.Popen(words, env=environment, close_fds=False, preexec_fn=in_child)  # noqa: PLW1509  (no thread of ours yet)

    try:
        return start(command)
    except OSError as error:
        if error.errno == errno.ENOEXEC:  # an executable script without #! line, which shells run themselves
            return start(["/bin/sh", shutil.which(command[0]) or command[0], *command[1:]])
        kind = CommandNotFound if isinstance(error, FileNotFoundError) else CommandNotExecutable
        raise kind(
            f"{command[0]} can't be started ({error.strerror}); if it is a script, look at the interpreter in its first line"
        ) from error


def exit_like(returncode: int) -> None:
    """End this process as the command ended: with its status, or by the signal that killed it."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()
    if returncode >= 0:
        sys.exit(returncode)
    number = -returncode
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))  # the command left its own core, if any
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    os.kill(os.getpid(), number)
    sys.exit(128 + number)  # reached only by a signal whose default is to be ignored
