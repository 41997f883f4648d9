"""How rlaudit reads other people's code: declared targets, observed calls, counted failures.

An adapter declares which functions of which distribution it observes and with which parameters. It
attaches only where every required target is as declared, refuses with a reason otherwise, and can be
detached again. Observers never change arguments or results and never raise into the observed call.

Replacements are plain functions (``functools.wraps``), not proxies: Ray pickles classes by reference and
cloudpickle walks them, which proxies do not survive.
"""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple


class Target(NamedTuple):
    """A function or method of somebody else's that an adapter observes.

    path: dotted path below the module, for example ``GRPOTrainer._compute_loss``.
    parameters: names that the adapter relies on (without ``self``); others may be there too.
    required: False where the adapter works without this target, with less to record.
    """

    path: str
    parameters: tuple[str, ...] = ()
    required: bool = True


class Adapter(NamedTuple):
    """What an adapter observes, for ``rlaudit hooks`` and for attaching.

    kind: framework, engine or model. versions: the PEP 440 range that was read and tested.
    module: the *defining* module whose import triggers attaching. records: what it yields, for people.
    """

    name: str
    kind: str
    distribution: str
    versions: str
    module: str
    targets: tuple[Target, ...]
    records: str


class Mismatch(Exception):
    """A target is missing or lacks a parameter; the message says which."""


def missing_parameters(target: Target, names: list[str], takes_any: bool) -> list[str]:
    """Parameters of ``target`` that a function with parameter ``names`` doesn't have."""
    return [] if takes_any else [name for name in target.parameters if name not in names]


def resolve(module: ModuleType, target: Target) -> tuple[Any, str, Callable[..., Any]]:
    """Owner, attribute name and function of ``target``; Mismatch where it isn't as declared."""
    owner: Any = module
    *parents, name = target.path.split(".")
    for parent in parents:
        owner = getattr(owner, parent, None)
        if owner is None:
            raise Mismatch(f"{module.__name__} has no {parent}")
    function = inspect.getattr_static(owner, name, None)
    if isinstance(function, (staticmethod, classmethod)) or not callable(function):
        raise Mismatch(f"{module.__name__} has no function {target.path}")
    parameters = inspect.signature(function).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values()) and any(p.kind is p.VAR_POSITIONAL for p in parameters.values())
    missing = missing_parameters(target, list(parameters), takes_any)
    if missing:
        raise Mismatch(f"{target.path} has no parameter {', '.join(missing)}; it has ({', '.join(parameters)})")
    return owner, name, function


class Call:
    """One observed call: the bound arguments by name (``self`` included where there is one)."""

    __slots__ = ("arguments",)

    def __init__(self, arguments: dict[str, Any]) -> None:
        self.arguments = arguments

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    def get(self, name: str, default: Any = None) -> Any:
        """The argument of that name, or ``default`` where the function has none."""
        return self.arguments.get(name, default)


class HookLog:
    """What happened to the hooks of this process: attached, refused, fired, failed, and the time they took."""

    def __init__(self) -> None:
        self.fired: dict[str, int] = {}
        self.failures: dict[str, tuple[int, str]] = {}
        self.seconds = 0.0

    def clear(self) -> None:
        """Forget all counts: in a forked child, whose parent reports them."""
        self.fired.clear()
        self.failures.clear()
        self.seconds = 0.0

    def failed(self, name: str, error: BaseException) -> None:
        """Count a failure inside our own code; the first message is kept."""
        count, first = self.failures.get(name, (0, f"{type(error).__name__}: {error}"))
        self.failures[name] = (count + 1, first)


Before = Callable[[Call], Any]
After = Callable[[Any, Any, Call], None]
Cleanup = Callable[[Any], None]


class Attachment:
    """The hooks of one adapter in this process; symmetrical: ``detach`` restores every original."""

    def __init__(self, adapter: Adapter, module: ModuleType, log: HookLog) -> None:
        self.adapter = adapter
        self.module = module
        self.log = log
        self._resolved: dict[str, tuple[Any, str, Callable[..., Any]]] = {}
        self._undo: list[Callable[[], None]] = []
        self.absent: list[str] = []
        for target in adapter.targets:
            try:
                self._resolved[target.path] = resolve(module, target)
            except Mismatch as mismatch:
                if target.required:
                    raise
                self.absent.append(str(mismatch))

    def has(self, path: str) -> bool:
        """True where the optional target ``path`` is there."""
        return path in self._resolved

    def observe(self, path: str, *, before: Before | None = None, after: After | None = None, cleanup: Cleanup | None = None) -> None:
        """Observe every call of ``path``.

        ``before(call)`` runs first and returns a token; ``after(token, result, call)`` runs when the call
        returned; ``cleanup(token)`` runs in any case, last, where ``before`` succeeded. An exception in any of them is
        counted in the log and goes nowhere else; the call's own result or exception passes unchanged.
        An absent optional target is left alone.
        """
        if path not in self._resolved:
            return
        owner, name, original = self._resolved[path]
        signature = inspect.signature(original)
        log, label = self.log, f"{self.adapter.name}: {path}"

        @functools.wraps(original)
        def observed(*args: Any, **kwargs: Any) -> Any:
            token: Any = None
            ready = False
            start = time.perf_counter()
            call = Call({})
            try:
                bound = signature.bind(*args, **kwargs)
                bound.apply_defaults()
                call = Call(bound.arguments)
                token = before(call) if before else None
                ready = True
            except Exception as error:
                log.failed(label, error)
            log.fired[label] = log.fired.get(label, 0) + 1
            log.seconds += time.perf_counter() - start
            try:
                result = original(*args, **kwargs)
                if ready and after:
                    start = time.perf_counter()
                    try:
                        after(token, result, call)
                    except Exception as error:
                        log.failed(label, error)
                    log.seconds += time.perf_counter() - start
                return result
            finally:
                if ready and cleanup:
                    try:
                        cleanup(token)
                    except Exception as error:
                        log.failed(label, error)

        inherited = name not in vars(owner)
        setattr(owner, name, observed)
        self._undo.append(lambda: delattr(owner, name) if inherited else setattr(owner, name, original))

    def detach(self) -> None:
        """Put every original back."""
        while self._undo:
            self._undo.pop()()
