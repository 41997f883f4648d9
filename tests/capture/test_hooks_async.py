"""Observed coroutines and asynchronous generators behave, to those who call them, as they did before."""

from __future__ import annotations

import asyncio
import gc
import inspect
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from rlaudit.capture.hooks import Adapter, Attachment, HookLog, Target

ADAPTER = Adapter("engine", "engine", "engine", ">=1", "engine", (Target("double", ("value",)), Target("Engine.count", ("limit",))), "")


class Engine:
    """Counts, and says what happens to it."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    async def count(self, limit: int, fail: bool = False) -> Any:
        """0, 1, ... below ``limit``."""
        try:
            for number in range(limit):
                try:
                    sent = yield number
                    self.seen.append(sent)
                except KeyError as error:
                    self.seen.append(error)
                    yield "caught"
            if fail:
                raise ValueError("counted too far")
        finally:
            await asyncio.sleep(0)
            self.seen.append("closed")


async def double(value: int) -> int:
    if value < 0:
        raise ValueError(value)
    await asyncio.sleep(0)
    return 2 * value


@pytest.fixture
def told() -> list[Any]:
    return []


@pytest.fixture
def module() -> Any:
    made = ModuleType("engine")
    made.__dict__.update(double=double, Engine=type("Engine", (Engine,), {"count": Engine.count}))
    return made


@pytest.fixture
def attachment(module: Any, told: list[Any]) -> Iterator[Attachment]:
    made = Attachment(ADAPTER, module, HookLog())
    made.observe_coroutine(
        "double",
        before=lambda call: told.append(("before", call["value"])) or "token",
        after=lambda token, result, call: told.append(("after", token, result)),
        cleanup=lambda token: told.append(("cleanup", token)),
    )
    made.observe_items(
        "Engine.count",
        before=lambda call: told.append(("before", call["limit"])) or "token",
        item=lambda token, value, call: told.append(("item", value)),
        after=lambda token, call: told.append(("after", token)),
        cleanup=lambda token: told.append(("cleanup", token)),
    )
    yield made
    made.detach()


def test_a_coroutine_is_observed_when_it_returned_and_not_when_it_was_made(attachment: Attachment, module: Any, told: list[Any]) -> None:
    coroutine = module.double(3)
    assert told == []
    assert asyncio.run(coroutine) == 6
    assert told == [("before", 3), ("after", "token", 6), ("cleanup", "token")]


def test_a_coroutines_exception_passes(attachment: Attachment, module: Any, told: list[Any]) -> None:
    with pytest.raises(ValueError, match="-1"):
        asyncio.run(module.double(-1))
    assert told == [("before", -1), ("cleanup", "token")]


def test_every_item_is_observed_before_it_is_handed_on(attachment: Attachment, module: Any, told: list[Any]) -> None:
    async def consume() -> None:
        async for value in module.Engine().count(2):
            told.append(("consumed", value))

    asyncio.run(consume())
    expected = [("item", 0), ("consumed", 0), ("item", 1), ("consumed", 1)]
    assert told == [("before", 2), *expected, ("after", "token"), ("cleanup", "token")]


def test_an_exception_of_the_generator_passes(attachment: Attachment, module: Any, told: list[Any]) -> None:
    async def consume() -> None:
        async for _ in module.Engine().count(1, fail=True):
            pass

    with pytest.raises(ValueError, match="counted too far"):
        asyncio.run(consume())
    assert told == [("before", 1), ("item", 0), ("cleanup", "token")]


def test_closing_closes_the_generator_at_once(attachment: Attachment, module: Any, told: list[Any]) -> None:
    async def consume() -> list[Any]:
        engine = module.Engine()
        items = engine.count(9)
        await items.__anext__()
        await items.aclose()
        return engine.seen  # type: ignore[no-any-return]

    assert asyncio.run(consume()) == ["closed"]
    assert told == [("before", 9), ("item", 0), ("cleanup", "token")]


def test_a_generator_that_is_dropped_after_one_item_is_closed_by_the_loop(attachment: Attachment, module: Any, told: list[Any]) -> None:
    async def consume() -> list[Any]:
        engine = module.Engine()
        assert await engine.count(9).__anext__() == 0
        gc.collect()
        for _ in range(5):
            await asyncio.sleep(0)
        return engine.seen  # type: ignore[no-any-return]

    assert asyncio.run(consume()) == ["closed"]
    assert told[-1] == ("cleanup", "token")


def test_what_is_sent_and_thrown_in_reaches_the_generator(attachment: Attachment, module: Any) -> None:
    async def consume() -> tuple[list[Any], list[Any]]:
        engine = module.Engine()
        items = engine.count(3)
        got = [await items.__anext__(), await items.asend("hello"), await items.athrow(KeyError("k"))]
        await items.aclose()
        return got, engine.seen

    got, seen = asyncio.run(consume())
    assert got == [0, 1, "caught"]
    assert seen[0] == "hello"
    assert isinstance(seen[1], KeyError)
    assert seen[2:] == ["closed"]


def test_a_cancelled_task_cancels_the_generator(module: Any, told: list[Any]) -> None:
    seen: list[str] = []

    async def endless(self: Any, limit: int) -> Any:
        try:
            yield 0
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    module.Engine.count = endless
    made = Attachment(ADAPTER, module, HookLog())
    made.observe_items("Engine.count", cleanup=lambda token: told.append("cleanup"))

    async def consume() -> None:
        async for _ in module.Engine().count(1):
            pass

    async def main() -> None:
        task = asyncio.create_task(consume())
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert seen == ["cancelled"]
    assert told == ["cleanup"]


def test_failures_of_observers_are_counted_and_go_nowhere_else(module: Any) -> None:
    log = HookLog()
    made = Attachment(ADAPTER, module, log)

    def broken(*arguments: Any) -> None:
        raise RuntimeError("ours")

    async def prepare(call: Any) -> None:
        raise RuntimeError("ours too")

    made.observe_items("Engine.count", prepare=prepare, item=broken, after=broken, cleanup=broken)
    made.observe_coroutine("double", before=broken, after=broken, cleanup=broken)

    async def consume() -> list[Any]:
        return [value async for value in module.Engine().count(2)] + [await module.double(2)]

    assert asyncio.run(consume()) == [0, 1, 4]
    assert log.failures["engine: Engine.count"] == (5, "RuntimeError: ours too")  # prepare, two items, after, cleanup
    assert log.failures["engine: double"] == (1, "RuntimeError: ours")


def test_prepare_is_awaited_before_the_generator_begins(module: Any) -> None:
    order: list[str] = []

    async def prepare(call: Any) -> None:
        await asyncio.sleep(0)
        order.append(f"prepared {call['limit']}")

    made = Attachment(ADAPTER, module, HookLog())
    made.observe_items("Engine.count", prepare=prepare, before=lambda call: order.append("before"))

    async def consume() -> None:
        async for _ in module.Engine().count(1):
            order.append("item")

    asyncio.run(consume())
    assert order == ["prepared 1", "before", "item"]


def test_observed_functions_stay_what_they_are_and_detach_restores_them(attachment: Attachment, module: Any) -> None:
    assert inspect.iscoroutinefunction(module.double)
    assert inspect.isasyncgenfunction(module.Engine.count)
    attachment.detach()
    assert module.double is double
    assert module.Engine.count is Engine.count
