"""The spool files of one process: which one is open, when the next begins, and what is said where the disk takes no more."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlaudit.spool import SpoolFile

ROTATE_BYTES = 64 << 20
"""A spool of this size is sealed, and the launcher turns it into Parquet while training goes on."""
WORDS_ROOM = 6 << 10
"""Bytes kept free in every spool for what has to be said when the disk is full: why capture stopped, and what was lost."""


class ProcessSpool:
    """Where a process's rows go. Not thread-safe: the recorder guards it.

    The next file is there before the one at hand is sealed, so that there is always one to say last words in.
    """

    def __init__(self, folder: Path, facts: Mapping[str, Any], number: int) -> None:
        """``facts``: columns equal for all rows (``rlaudit.capture.process.process_facts``); ``number``: of the first file."""
        self.facts = dict(facts)
        self._folder = folder
        self._number = number
        self._open: SpoolFile | None = None
        self._opened = 0.0

    @property
    def size(self) -> int:
        """Bytes of the open file."""
        return self._open.size if self._open is not None else 0

    @property
    def removed(self) -> bool:
        """True where somebody removed the open file."""
        return self._open is not None and self._open.removed

    def append(self, frame: Sequence[bytes | memoryview]) -> int:
        """Write one frame; returns its bytes. OSError where the disk refuses, or somebody removed the file."""
        spool = self._open if self._open is not None else self._begin()
        if spool.removed:
            raise FileNotFoundError(2, "it was removed")
        before = spool.size
        spool.append(frame)
        written = spool.size - before
        if spool.size >= ROTATE_BYTES:
            self.rotate()
        return written

    def seal_older_than(self, seconds: float) -> None:
        """Seal the open file where it holds rows and has been open for that long."""
        if self.seconds_open >= seconds:
            self.rotate()

    @property
    def seconds_open(self) -> float:
        """How long rows have been waiting in the open file to be sealed; 0 where there are none."""
        if self._open is None or self._open.size == self._open.head_size:
            return 0.0
        return time.monotonic() - self._opened

    def rotate(self) -> None:
        """Begin the next file and seal this one. Where that isn't possible (yet), this one is written on."""
        before = self._open
        self._opened = time.monotonic()
        if before is None or before.size == before.head_size:
            return
        try:
            self._begin()
        except OSError:
            return
        try:
            before.seal()
        except OSError:
            before.close()  # readers and the launcher take open files of processes that have ended, too

    def know_rank(self, rank: int) -> None:
        """Rows from now on are of this rank; those in the open file were written before it was known."""
        self.facts["rank"] = rank
        before = self._open
        if before is not None:
            self._begin()
            before.seal()

    def say_last(self, events: Sequence[Mapping[str, Any]]) -> bool:
        """Leave events where no more frames can be written; replaces what was said so before. False where that isn't possible either."""
        try:
            return self._open is not None and not self.removed and self._open.say_last(events)
        except OSError:
            return False

    def close(self) -> None:
        """Seal the open file. OSError where it can't be; it is closed all the same, and readers find it."""
        spool, self._open = self._open, None
        if spool is None:
            return
        try:
            spool.seal()
        finally:
            spool.close()

    def forget(self) -> None:
        """In a forked child: the open file is the parent's."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def _begin(self) -> SpoolFile:
        self._open = SpoolFile(self._folder, self.facts["process"], self._number, self.facts, WORDS_ROOM)
        self._number += 1
        self._opened = time.monotonic()
        return self._open
