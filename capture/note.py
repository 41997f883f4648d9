"""The note that a process leaves at its start: a spool of one event, written with next to no imports."""

from __future__ import annotations

import os
import time

from rlaudit.spool_layout import OPEN_SUFFIX, SEALED_SUFFIX, file_head, frame_head

TYPE_CHECKING = False  # as typing.TYPE_CHECKING, whose module is slow to import
if TYPE_CHECKING:
    from typing import Any
try:
    from _json import encode_basestring_ascii as _quoted  # json's, without what json imports
except ImportError:
    from json.encoder import encode_basestring_ascii as _quoted


def leave_note(folder: str, facts: dict[str, Any], detail: dict[str, Any]) -> None:
    """Write the event ``process_started`` with ``detail`` as the sealed spool number 0 of the process of ``facts``.

    folder: the run's spools; made where it is missing (another node without a shared disk). OSError where it can't be written.
    """
    columns = {
        "time": _constant(str(time.time())),
        "kind": _constant('"process_started"'),
        "name": _constant('"process"'),
        "detail": _constant(_quoted(_json(detail))),
    }
    frame = '{"table":"events","rows":1,"columns":{%s}}' % ",".join(f'"{name}":{value}' for name, value in columns.items())  # noqa: UP031
    os.makedirs(folder, exist_ok=True)  # noqa: PTH103  (no pathlib at start-up)
    path = f"{folder}/{facts['process']}_000000"
    file = os.open(path + OPEN_SUFFIX, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        content = file_head(_json(facts).encode() + b"\n") + frame_head(frame.encode(), 0)
        if os.write(file, content) < len(content):
            raise OSError(28, "No space left on device")
        os.rename(path + OPEN_SUFFIX, path + SEALED_SUFFIX)  # noqa: PTH104
    except OSError:
        os.unlink(path + OPEN_SUFFIX)  # noqa: PTH108
        raise
    finally:
        os.close(file)


def _constant(value: str) -> str:
    return '{"kind":"constant","value":%s}' % value  # noqa: UP031


def _json(value: Any) -> str:
    """JSON of None, numbers, text and dictionaries of them."""
    if value is None:
        return "null"
    if isinstance(value, str):
        return str(_quoted(value))
    if isinstance(value, dict):
        return "{%s}" % ",".join(f"{_quoted(name)}:{_json(entry)}" for name, entry in value.items())  # noqa: UP031
    return str(value)
