"""The environment variables of capture, read with next to no imports: every Python process below the command looks at them."""

from __future__ import annotations

VARIABLE = "RLAUDIT_CAPTURE"
"""Holds the configuration as JSON (``rlaudit.capture.config``); its presence is what switches the bootstrap on."""
DISABLE_VARIABLE = "RLAUDIT_DISABLE"
"""Set to 1: no rlaudit code runs in the processes below."""

_HEAD = '{"run":"'
_NEXT = ',"attempt":'


def run_and_attempt(text: str) -> tuple[str, int]:
    """Run folder and attempt in the configuration's text. ValueError, KeyError or TypeError where it is none.

    ``CaptureConfig.to_variable`` puts these two first, so that no JSON parser is imported for them.
    """
    try:
        from _json import scanstring  # json's, without what json imports

        if text.startswith(_HEAD):
            run, end = scanstring(text, len(_HEAD))
            number = text[end + len(_NEXT) :].partition(",")[0]
            if text.startswith(_NEXT, end) and number.isdigit():
                return run, int(number)
    except ImportError:
        pass  # an interpreter without CPython's accelerator: json has its own
    import json

    data = json.loads(text)
    return str(data["run"]), int(data.get("attempt", 0))
