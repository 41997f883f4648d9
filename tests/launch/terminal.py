"""A terminal for a command, as a person sits at one: a pseudo-terminal that is the command's controlling terminal."""

from __future__ import annotations

import fcntl
import os
import select
import struct
import termios
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from tests.launch.place import Place


class Terminal:
    """Starts a command in a session of its own whose terminal is this one; 100 columns, 30 lines."""

    def __init__(self, place: Place, command: Sequence[str | Path]) -> None:
        self._ours, theirs = os.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        self._process = place.start(
            command,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0) and None,
        )
        os.close(theirs)
        self._seen = b""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        os.close(self._ours)

    def type(self, text: str) -> None:
        """Type ``text``."""
        os.write(self._ours, text.encode())

    def read_until(self, text: str, seconds: float = 60.0) -> str:
        """Everything on the screen so far, once ``text`` is."""
        deadline = time.monotonic() + seconds
        while text.encode() not in self._seen:
            assert time.monotonic() < deadline, f"{text!r} did not appear; there is {self._seen!r}"
            if not self._read():
                raise AssertionError(f"{text!r} did not appear before the end; there is {self._seen!r}")
        return self._seen.decode(errors="replace")

    def read_to_end(self) -> str:
        """Everything on the screen, once the command has ended."""
        while self._read():
            pass
        return self._seen.decode(errors="replace")

    def status(self) -> int:
        """Return code of the command (negative: killed by that signal)."""
        return self._process.wait(timeout=60)

    def _read(self) -> bool:
        if not select.select([self._ours], [], [], 60.0)[0]:
            raise AssertionError(f"nothing came for a minute; there is {self._seen!r}")
        try:
            data = os.read(self._ours, 65536)
        except OSError:  # EIO: nobody has the other side open any more
            return False
        self._seen += data
        return bool(data)
