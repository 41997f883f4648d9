"""Entry point ``sglang.srt.plugins``: SGLang calls it in its launching and scheduler processes, also where start-up brought nothing.

Read: SGLang 0.5.19, ``sglang.srt.plugins.load_plugins``. Capture that is there already has attached: then nothing is done.
"""

from __future__ import annotations

from rlaudit.capture.process import say


def register() -> None:
    """Begin capture in this process where the environment asks for it and nothing has begun it. Never raises."""
    try:
        from . import vllm_plugin

        vllm_plugin.register()
    except Exception as error:
        say(f"nothing is captured through SGLang's plugin ({type(error).__name__}: {error})")
