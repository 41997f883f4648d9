"""Where a command's output goes: standard output, or a file that appears complete or not at all."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from rlaudit.errors import BadOption


@contextlib.contextmanager
def text_output(path: Path | None) -> Iterator[IO[str]]:
    """A text stream to ``path``, or standard output for None. BadOption where the file can't be written."""
    if path is None:
        yield sys.stdout
        return
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        yield file


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside ``path`` that takes its place when the block ends well, and goes away when it doesn't."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.touch()
    except OSError as error:
        raise BadOption(f"can't write {path}: {error.strerror}") from error
    try:
        yield temporary
        temporary.replace(path)
    except OSError as error:
        raise BadOption(f"can't write {path}: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)
