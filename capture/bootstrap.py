"""Runs at the start of every Python process below a captured command.

Reached through the ``.pth`` file of the wheel or through ``capture/site/sitecustomize.py``, whichever comes first, and
does its work once. It only notes that the process exists and installs a finder that waits for the modules of
``rlaudit.capture.registry``; nothing heavy is imported before one of them is. It never raises.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from rlaudit import recording
from rlaudit.capture.config import DISABLE_VARIABLE, VARIABLE, CaptureConfig
from rlaudit.capture.process import process_facts
from rlaudit.capture.registry import PROPAGATION, TRIGGERS

_active: Capture | None = None


class Capture:
    """Capture in this process: its configuration and, once something is to be recorded, its recorder."""

    def __init__(self, config: CaptureConfig) -> None:
        self.config = config
        self.facts = process_facts(config.attempt)
        self._sink: Any = None
        self.attachments: list[Any] = []

    def note_process(self) -> None:
        """Write that this process exists, in a spool of one event."""
        from pathlib import Path

        from rlaudit.spool import Constant, SpoolFile, encode_frame

        detail = {
            "executable": sys.executable,
            "program": _program(),
            "python": sys.version.split()[0],
            "pid": os.getpid(),
            "parent": os.getppid(),
        }
        spool = SpoolFile(Path(self.config.run, "spool"), self.facts["process"], 0, self.facts)
        import json

        spool.append(
            encode_frame(
                "events",
                1,
                {
                    "time": Constant(time.time()),
                    "kind": Constant("process_started"),
                    "name": Constant("process"),
                    "detail": Constant(json.dumps(detail)),
                },
            )
        )
        spool.seal()

    @property
    def sink(self) -> Any:
        """The recorder's sink, made on first use."""
        if self._sink is None:
            from rlaudit.capture.hooks import HookLog
            from rlaudit.capture.recorder import Recorder
            from rlaudit.capture.sink import RecorderSink

            self._sink = RecorderSink(Recorder(self.config, HookLog(), self.facts, 1))
            recording.set_sink(self._sink)
            self._note_environment()
        return self._sink

    def _note_environment(self) -> None:
        from rlaudit.capture.environment import environment_facts

        self._sink.recorder.event("environment", "process", detail=environment_facts())

    def attach(self, adapter_module: str, module: ModuleType) -> None:
        """Attach one adapter to a module that was just imported, or say why not."""
        import importlib

        from rlaudit.capture.attach import attach

        attachment = attach(importlib.import_module(adapter_module), module, self.sink.recorder)
        if attachment is not None:
            self.attachments.append(attachment)


class _LazySink:
    """Stands behind ``rlaudit.record_*`` until the first call makes the recorder."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture

    def __getattr__(self, name: str) -> Any:
        return getattr(self._capture.sink, name)


class _TriggerFinder:
    """A meta path finder that finds nothing itself: it lets the others find a trigger and adds the attaching."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        """The spec that the other finders give, with its loader told to attach after execution."""
        if name not in TRIGGERS and name not in PROPAGATION:
            return None
        for finder in sys.meta_path:
            if finder is not self and hasattr(finder, "find_spec"):
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    self._add(spec)
                    return spec
        return None

    def _add(self, spec: Any) -> None:
        loader, capture = spec.loader, self._capture
        execute = getattr(loader, "exec_module", None)
        if execute is None:
            return

        def exec_module(module: ModuleType) -> None:
            execute(module)
            if spec.name in PROPAGATION:
                _never_raise(lambda: _propagate(*PROPAGATION[spec.name], module))
            for adapter in TRIGGERS.get(spec.name, ()):
                _never_raise(lambda adapter=adapter: capture.attach(adapter, module))  # type: ignore[misc]

        # Set on this one loader object; the loader keeps its type, which resource readers and inspect rely on.
        try:
            loader.exec_module = exec_module
        except AttributeError as error:
            _complain(error)


def _propagate(module_name: str, function: str, module: ModuleType) -> None:
    import importlib

    getattr(importlib.import_module(module_name), function)(module, _complain)


def _program() -> str:
    """What runs, without arguments (they may hold secrets). sys.argv isn't there yet when site runs."""
    arguments = getattr(sys, "orig_argv", None) or getattr(sys, "argv", None) or [""]
    for position, argument in enumerate(arguments[1:], 1):
        if argument == "-m" and position + 1 < len(arguments):
            return f"-m {arguments[position + 1]}"
        if argument == "-c":
            return "-c"
        if not argument.startswith("-"):
            return str(argument)
    return str(arguments[0])


def _complain(error: BaseException) -> None:
    sys.stderr.write(
        f"rlaudit: nothing is captured in process {os.getpid()} ({type(error).__name__}: {error}); it runs on as without capture\n"
    )


def _never_raise(action: Callable[[], None]) -> None:
    """Training must not end because capture could not begin; the user is told once."""
    try:
        action()
    except Exception as error:
        _complain(error)


def active() -> Capture | None:
    """Capture in this process; None where there is none."""
    return _active


def start() -> None:
    """Begin capture in this process where the environment asks for it. Does nothing the second time."""
    global _active  # noqa: PLW0603  (one capture a process is the point)
    text = os.environ.get(VARIABLE)
    if not text or os.environ.get(DISABLE_VARIABLE) == "1" or _active is not None:
        return
    _active = Capture(CaptureConfig.from_variable(text))
    sys.meta_path.insert(0, _TriggerFinder(_active))
    recording.set_sink(_LazySink(_active))
    _active.note_process()


_never_raise(start)
