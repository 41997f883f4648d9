"""The spool: raw records that a process appends while it runs, with the standard library alone.

A spool file survives SIGKILL: every frame is written with one system call sequence and no buffer of ours,
and a torn last frame is recognised and left out. ``rlaudit.segments`` turns spools into Parquet.

Layout: a file header (magic, version, length, JSON of the columns that are equal for all rows), then frames.
A frame is a batch of rows of one table: magic, CRC of the head, length of the head, length of the body, then the
head (JSON: table, rows, columns) and the body (the columns' buffers, back to back).

The header may be padded with room for *last words*: events that are written in place when the disk takes no more frames.
They follow the JSON of the header on a line of their own, behind their CRC.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from rlaudit.spool_layout import FILE_MAGIC, FRAME_MAGIC, OPEN_SUFFIX, SEALED_SUFFIX, VERSION, file_head, frame_head

_FILE = struct.Struct("<8sII")
_FRAME = struct.Struct("<4sIIQ")


class Scalars(NamedTuple):
    """One JSON-representable value a row (None for null)."""

    values: Sequence[Any]


class Constant(NamedTuple):
    """The same JSON-representable value for every row."""

    value: Any


class Lists(NamedTuple):
    """One list a row: ``lengths`` int32 (-1 for a null list), ``values`` flat in NumPy type ``dtype``,
    ``valid`` one byte an element (0 for null) or None where all are valid."""

    dtype: str
    lengths: memoryview
    values: memoryview
    valid: memoryview | None = None


class Blobs(NamedTuple):
    """One byte string a row: ``lengths`` int64 (-1 for null), ``values`` back to back."""

    lengths: memoryview
    values: memoryview


Field = Scalars | Constant | Lists | Blobs


class Frame(NamedTuple):
    """A decoded frame; its buffers are views of the file."""

    table: str
    rows: int
    columns: dict[str, Field]


def encode_frame(table: str, rows: int, columns: Mapping[str, Field]) -> list[bytes | memoryview]:
    """The chunks of a frame, in file order; buffers are passed through, not copied."""
    head: dict[str, Any] = {}
    chunks: list[bytes | memoryview] = []
    size = 0

    def put(buffer: memoryview) -> list[int]:
        nonlocal size
        flat = buffer.cast("B") if buffer.nbytes else memoryview(b"")
        chunks.append(flat)
        place = [size, flat.nbytes]
        size += flat.nbytes
        return place

    for name, field in columns.items():
        if isinstance(field, Constant):
            head[name] = {"kind": "constant", "value": field.value}
        elif isinstance(field, Scalars):
            head[name] = {"kind": "scalars", "values": list(field.values)}
        elif isinstance(field, Lists):
            valid = put(field.valid) if field.valid is not None else None
            head[name] = {"kind": "lists", "dtype": field.dtype, "lengths": put(field.lengths), "values": put(field.values), "valid": valid}
        else:
            head[name] = {"kind": "blobs", "lengths": put(field.lengths), "values": put(field.values)}
    text = json.dumps({"table": table, "rows": rows, "columns": head}, separators=(",", ":")).encode()
    return [frame_head(text, size), *chunks]


class SpoolFile:
    """An open spool. Not thread-safe: the recorder's writer thread owns it."""

    def __init__(self, folder: Path, process: str, number: int, defaults: Mapping[str, Any], words_room: int = 0) -> None:
        """Create ``<process>_<number>.open`` in ``folder``, with ``words_room`` bytes for last words. OSError where that isn't possible."""
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{process}_{number:06d}{OPEN_SUFFIX}"
        self._file = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        text = json.dumps(dict(defaults), separators=(",", ":")).encode() + b"\n"
        self._words_at = _FILE.size + len(text)
        self._words_room = words_room
        self.size = 0
        try:
            self.append([file_head(text + b" " * words_room)])
        except OSError:
            self.close()
            self.path.unlink(missing_ok=True)
            raise
        self.head_size = self.size

    def append(self, frame: Sequence[bytes | memoryview]) -> None:
        """Write one frame. On OSError (disk full) the file is cut back to its last whole frame and the error raised."""
        written = 0
        try:
            for chunk in frame:
                view = memoryview(chunk)
                while view:
                    count = os.write(self._file, view)
                    written += count
                    view = view[count:]
        except OSError:
            os.ftruncate(self._file, self.size)
            os.lseek(self._file, self.size, os.SEEK_SET)
            raise
        self.size += written

    def say_last(self, events: Sequence[Mapping[str, Any]]) -> bool:
        """Write or replace the last words: rows of ``events`` as JSON values by column. Needs no more room on the disk.

        False where they are too long for the room. OSError where the file can't be written at all.
        """
        text = json.dumps([dict(event) for event in events], separators=(",", ":")).encode()
        line = b"%08x %s\n" % (zlib.crc32(text), text)
        if len(line) > self._words_room:
            return False
        os.pwrite(self._file, line.ljust(self._words_room), self._words_at)
        return True

    @property
    def removed(self) -> bool:
        """True where somebody deleted the file while it was open: what is written to it is lost."""
        return os.fstat(self._file).st_nlink == 0

    def seal(self) -> Path:
        """Mark the file complete and close it; returns its new path. On OSError it is as before, and still open."""
        sealed = self.path.with_suffix(SEALED_SUFFIX)
        self.path.rename(sealed)
        self.close()
        return sealed

    def close(self) -> None:
        """Close without sealing (after a fork, or when capture stops on an error)."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class SpoolContents(NamedTuple):
    """What a spool holds: the columns equal for all rows, its whole frames, and then its last words, if any, as frames of ``events``."""

    defaults: dict[str, Any]
    frames: Iterator[Frame]


class TornSpool(ValueError):
    """A spool whose header can't be read; the message says why."""


def read_spool(path: Path) -> SpoolContents:
    """Open a spool for reading. TornSpool where not even the file header is whole.

    The iterator ends at the last whole frame: what follows was being written when the process died.
    """
    with path.open("rb") as file:
        if path.stat().st_size < _FILE.size:
            raise TornSpool(f"{path} is shorter than a spool's header")
        data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    magic, version, length = _FILE.unpack_from(data)
    if magic != FILE_MAGIC:
        raise TornSpool(f"{path} is not a spool")
    if version != VERSION:
        raise TornSpool(f"{path} is a spool of version {version}; this rlaudit reads version {VERSION}")
    start = _FILE.size + length
    if len(data) < start:
        raise TornSpool(f"{path} ends inside its header")
    facts, _, rest = bytes(data[_FILE.size : start]).partition(b"\n")
    return SpoolContents(json.loads(facts), chain(_frames(data, start), _last_words(rest)))


def _last_words(text: bytes) -> Iterator[Frame]:
    """Last words of a header; none where there are none, or where the process died while it wrote them."""
    checksum, _, words = text.partition(b"\n")[0].partition(b" ")
    if words and checksum == b"%08x" % zlib.crc32(words):
        for event in json.loads(words):
            yield Frame("events", 1, {name: Constant(value) for name, value in event.items()})


def _frames(data: memoryview, at: int) -> Iterator[Frame]:
    while at + _FRAME.size <= len(data):
        magic, checksum, head_size, body_size = _FRAME.unpack_from(data, at)
        head_at = at + _FRAME.size
        body_at = head_at + head_size
        if magic != FRAME_MAGIC or body_at + body_size > len(data):
            return
        text = bytes(data[head_at:body_at])
        if zlib.crc32(text) != checksum:
            return
        head = json.loads(text)
        body = data[body_at : body_at + body_size]
        yield Frame(head["table"], head["rows"], {name: _field(spec, body) for name, spec in head["columns"].items()})
        at = body_at + body_size


def _field(spec: dict[str, Any], body: memoryview) -> Field:
    def take(place: list[int]) -> memoryview:
        return body[place[0] : place[0] + place[1]]

    kind = spec["kind"]
    if kind == "constant":
        return Constant(spec["value"])
    if kind == "scalars":
        return Scalars(spec["values"])
    if kind == "lists":
        valid = take(spec["valid"]) if spec["valid"] is not None else None
        return Lists(spec["dtype"], take(spec["lengths"]), take(spec["values"]), valid)
    return Blobs(take(spec["lengths"]), take(spec["values"]))
