"""Runs at the start of every Python process below a captured command.

Reached through the ``.pth`` file of the wheel or through ``capture/site/sitecustomize.py``, whichever comes first, and
does its work once. It only notes that the process exists and installs a finder that waits for the modules of
``rlaudit.capture.registry``; nothing heavy is imported before one of them is, nor is anything before that worth a millisecond
(``benchmarks/startup.py``). It never raises.
"""

from __future__ import annotations

import os
import sys
from _thread import RLock

from rlaudit import recording
from rlaudit.capture.note import leave_note
from rlaudit.capture.process import process_facts, say, started_facts
from rlaudit.capture.registry import PROPAGATION, TRIGGERS
from rlaudit.capture.variables import DISABLE_VARIABLE, VARIABLE, run_and_attempt

TYPE_CHECKING = False  # as typing.TYPE_CHECKING, whose module is slow to import
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType
    from typing import Any

_active: Capture | None = None
_said: set[str] = set()


class Capture:
    """Capture in this process: what it was told and, once something is to be recorded, its recorder."""

    def __init__(self, text: str) -> None:
        """``text``: the configuration, as the environment variable holds it. ValueError, KeyError or TypeError where it is none."""
        self._text = text
        self._run, self._attempt = run_and_attempt(text)
        self._facts = process_facts(self._attempt)
        self._noted = False
        self._sink: Any = None
        self._making = RLock()  # loops record from several threads; the first two must not make two recorders
        self.attachments: list[Any] = []

    def note_process(self) -> None:
        """Write that this process exists, in a spool of one event."""
        leave_note(f"{self._run}/spool", self._facts, started_facts())
        self._noted = True

    def forked(self) -> None:
        """This is a child that a captured process forked: a process of its own, noted when it records something.

        A recorder that was there already looks after itself (``Recorder``).
        """
        self._making = RLock()
        if self._sink is None:
            self._facts = process_facts(self._attempt)
            self._noted = False

    @property
    def sink(self) -> Any:
        """The recorder's sink, made on first use."""
        if self._sink is None:
            with self._making:
                if self._sink is None:
                    self._sink = self._make_sink()
                    recording.set_sink(self._sink)
        return self._sink

    def _make_sink(self) -> Any:
        from rlaudit.capture.config import CaptureConfig
        from rlaudit.capture.environment import environment_facts
        from rlaudit.capture.hooks import HookLog
        from rlaudit.capture.recorder import Recorder
        from rlaudit.capture.sink import RecorderSink

        recorder = Recorder(CaptureConfig.from_variable(self._text), HookLog(), self._facts, noted=self._noted)
        recorder.event("environment", "process", detail=environment_facts())
        return RecorderSink(recorder)

    def attach(self, adapter_module: str, module: ModuleType) -> None:
        """Attach one adapter to a module that was just imported, or say why not."""
        import importlib

        from rlaudit.capture.attach import attach

        attachment = attach(importlib.import_module(adapter_module), module, self.sink.recorder)
        if attachment is not None:
            self.attachments.append(attachment)


class _LazySink:
    """Stands behind ``rlaudit.record_*`` until the first call makes the recorder. Where that can't be made, nothing is recorded."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture

    def __getattr__(self, name: str) -> Any:
        try:
            return getattr(self._capture.sink, name)
        except Exception as error:  # an environment without NumPy, for one; the training loop called and must go on
            recording.set_sink(None)
            _complain(error)
            return lambda *args, **kwargs: False


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


def _complain(error: BaseException) -> None:
    text = f"nothing is captured in process {os.getpid()} ({type(error).__name__}: {error}); it runs on as without capture"
    if text not in _said:  # every adapter would meet the same trouble
        _said.add(text)
        say(text)


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
    capture = Capture(text)
    capture.note_process()  # first: where this can't be written nothing can, and one line says so
    _active = capture
    sys.meta_path.insert(0, _TriggerFinder(capture))
    recording.set_sink(_LazySink(capture))
    os.register_at_fork(after_in_child=capture.forked)


_never_raise(start)
