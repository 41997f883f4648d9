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
from collections.abc import AsyncGenerator, Awaitable, Callable
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
Prepare = Callable[[Call], Awaitable[None]]


class _Observation:
    """One observed function: binds its arguments, runs observers, counts their failures and their time."""

    def __init__(self, log: HookLog, label: str, original: Callable[..., Any]) -> None:
        self.log = log
        self.label = label
        self.signature = inspect.signature(original)

    def bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """The call; TypeError where the arguments don't fit, as the function itself will say."""
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return Call(bound.arguments)

    def begin(self, before: Before | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Call] | None:
        """``before``'s token and the call; None where either failed."""
        start, begun = time.perf_counter(), None
        try:
            call = self.bound(args, kwargs)
            begun = (before(call) if before else None, call)
        except Exception as error:
            self.log.failed(self.label, error)
        self.log.fired[self.label] = self.log.fired.get(self.label, 0) + 1
        self.log.seconds += time.perf_counter() - start
        return begun

    def tell(self, observer: Callable[..., None], *arguments: Any) -> None:
        """Run an observer; its failure is counted and goes nowhere else."""
        start = time.perf_counter()
        try:
            observer(*arguments)
        except Exception as error:
            self.log.failed(self.label, error)
        self.log.seconds += time.perf_counter() - start

    async def prepare(self, prepare: Prepare, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Await ``prepare``; a cancellation of the task passes, a failure is counted."""
        try:
            await prepare(self.bound(args, kwargs))
        except Exception as error:
            self.log.failed(self.label, error)


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
        original = self.original(path)
        observation = self._observation(path)

        @functools.wraps(original)
        def observed(*args: Any, **kwargs: Any) -> Any:
            begun = observation.begin(before, args, kwargs)
            try:
                result = original(*args, **kwargs)
                if begun and after:
                    observation.tell(after, begun[0], result, begun[1])
                return result
            finally:
                if begun and cleanup:
                    observation.tell(cleanup, begun[0])

        self._replace(path, observed)

    def observe_coroutine(
        self, path: str, *, before: Before | None = None, after: After | None = None, cleanup: Cleanup | None = None
    ) -> None:
        """Observe a coroutine function: ``before`` when it begins to run, ``after`` when it returned, ``cleanup`` in any case.

        Otherwise as ``observe``, which sees only that the coroutine was made.
        """
        if path not in self._resolved:
            return
        original = self.original(path)
        observation = self._observation(path)

        @functools.wraps(original)
        async def observed(*args: Any, **kwargs: Any) -> Any:
            begun = observation.begin(before, args, kwargs)
            try:
                result = await original(*args, **kwargs)
                if begun and after:
                    observation.tell(after, begun[0], result, begun[1])
                return result
            finally:
                if begun and cleanup:
                    observation.tell(cleanup, begun[0])

        self._replace(path, observed)

    def observe_items(
        self,
        path: str,
        *,
        prepare: Prepare | None = None,
        before: Before | None = None,
        item: After | None = None,
        after: Callable[[Any, Call], None] | None = None,
        cleanup: Cleanup | None = None,
    ) -> None:
        """Observe an asynchronous generator function.

        When its first item is asked for, ``prepare(call)`` is awaited and ``before(call)`` runs; ``item(token, value, call)`` before each
        item is handed on; ``after(token, call)`` when the generator ended by itself; ``cleanup(token)`` in any case, also where
        the consumer closed it or dropped it. Items, what is sent and thrown in, closing, cancellation and exceptions pass unchanged.
        Arguments that don't fit are refused at the first item rather than at the call.
        """
        if path not in self._resolved:
            return
        original = self.original(path)
        observation = self._observation(path)

        @functools.wraps(original)
        async def observed(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
            if prepare:
                await observation.prepare(prepare, args, kwargs)
            begun = observation.begin(before, args, kwargs)
            items = original(*args, **kwargs)
            try:
                try:
                    value = await items.__anext__()
                    while True:
                        if begun and item:
                            observation.tell(item, begun[0], value, begun[1])
                        try:
                            sent = yield value
                        except GeneratorExit:
                            await items.aclose()
                            raise
                        except BaseException as error:
                            value = await items.athrow(error)
                        else:
                            value = await items.asend(sent)
                except StopAsyncIteration:
                    if begun and after:
                        observation.tell(after, begun[0], begun[1])
            finally:
                if begun and cleanup:
                    observation.tell(cleanup, begun[0])

        self._replace(path, observed)

    def original(self, path: str) -> Callable[..., Any]:
        """The function of ``path`` as it was before attaching."""
        return self._resolved[path][2]

    def _observation(self, path: str) -> _Observation:
        return _Observation(self.log, f"{self.adapter.name}: {path}", self.original(path))

    def _replace(self, path: str, observed: Callable[..., Any]) -> None:
        owner, name, original = self._resolved[path]
        inherited = name not in vars(owner)
        setattr(owner, name, observed)
        self._undo.append(lambda: delattr(owner, name) if inherited else setattr(owner, name, original))

    def detach(self) -> None:
        """Put every original back."""
        while self._undo:
            self._undo.pop()()
