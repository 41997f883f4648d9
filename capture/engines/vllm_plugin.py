"""Entry point ``vllm.general_plugins``: vLLM calls it in all its processes, also where Python's start-up did not bring capture.

Read: vLLM 0.30.0, ``vllm.plugins.load_general_plugins``. It may be called often and early; an exception in it would end the engine.
"""

from __future__ import annotations

import os
import sys

from rlaudit.capture.variables import VARIABLE


def register() -> None:
    """Begin capture in this process where the environment asks for it and nothing has begun it; otherwise do nothing."""
    if not os.environ.get(VARIABLE) or "rlaudit.capture.bootstrap" in sys.modules:
        return
    from rlaudit.capture import bootstrap  # begins at import
    from rlaudit.capture.process import say
    from rlaudit.capture.registry import TRIGGERS

    capture = bootstrap.active()
    if capture is None:
        return
    for trigger, adapters in TRIGGERS.items():
        module = sys.modules.get(trigger)
        if module is None or getattr(getattr(module, "__spec__", None), "_initializing", False):
            continue
        for adapter in adapters:
            try:
                capture.attach(adapter, module)
            except Exception as error:
                say(f"{adapter} could not attach in process {os.getpid()} ({type(error).__name__}: {error})")
