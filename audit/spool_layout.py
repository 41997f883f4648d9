"""The bytes at the head of a spool file and of a frame, for writers that may import next to nothing.

``rlaudit.spool`` explains the layout. Every Python process below a captured command writes one small spool at its start and
pays for what this module imports.
"""

from __future__ import annotations

VERSION = 1
OPEN_SUFFIX = ".open"
SEALED_SUFFIX = ".spool"
FILE_MAGIC = b"RLASPOOL"
FRAME_MAGIC = b"RLAF"


def file_head(text: bytes) -> bytes:
    """A file's first bytes: magic, version and length of ``text``, then ``text``."""
    return FILE_MAGIC + VERSION.to_bytes(4, "little") + len(text).to_bytes(4, "little") + text


def frame_head(text: bytes, body_size: int) -> bytes:
    """A frame's first bytes: magic, CRC and length of its head ``text``, length of its body, then ``text``."""
    from zlib import crc32

    return FRAME_MAGIC + crc32(text).to_bytes(4, "little") + len(text).to_bytes(4, "little") + body_size.to_bytes(8, "little") + text
