"""AsyncTimers.call_later and call_at do what asyncio's do, and so do their handles."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from wheeld_client import AsyncTimerHandle, AsyncTimers, InvalidDelay
from wheeld_testing import Wheel, wheel_fixture

wheel = wheel_fixture()

Caller = Callable[..., Any]
"""call_later(delay, callback, *args, context=...) of asyncio's loop or of a wheel."""


async def handles_of(timers: AsyncTimers, kind: str) -> tuple[Caller, Caller]:
    maker: Any = timers if kind == "wheel" else asyncio.get_running_loop()
    return maker.call_later, maker.call_at


@pytest.mark.parametrize("kind", ["asyncio", "wheel"])
async def test_as_asyncio(wheel: Wheel, kind: str) -> None:
    async with AsyncTimers(wheel) as timers:
        call_later, call_at = await handles_of(timers, kind)
        ran: list[tuple[str, float]] = []
        loop = asyncio.get_running_loop()

        def note(name: str) -> None:
            ran.append((name, loop.time()))

        start = loop.time()
        later = call_later(2.0, note, "later")
        at = call_at(start + 1.0, note, "at")
        past = call_at(start - 5.0, note, "past")
        gone = call_later(1.5, note, "never")
        assert (later.when(), at.when()) == pytest.approx((start + 2.0, start + 1.0))
        gone.cancel()
        assert [handle.cancelled() for handle in (later, at, past, gone)] == [False] * 3 + [True]
        await wheel.advance(3.0)
        assert [name for name, _ in ran] == ["past", "at", "later"]
        assert all(time >= start + after for (_, time), after in zip(ran, (0, 1, 2), strict=True))
        later.cancel()
        gone.cancel()  # again: nothing


@pytest.mark.parametrize("kind", ["asyncio", "wheel"])
async def test_contexts(wheel: Wheel, kind: str) -> None:
    seen: list[str] = []
    variable: ContextVar[str] = ContextVar("variable", default="none")

    def look() -> None:
        seen.append(variable.get())
        variable.set("changed by a callback")

    async with AsyncTimers(wheel) as timers:
        call_later, call_at = await handles_of(timers, kind)
        variable.set("caller's")
        other, empty = copy_context(), Context()
        other.run(variable.set, "given")
        call_later(1.0, look)
        call_later(2.0, look, context=other)
        call_at(asyncio.get_running_loop().time() + 3.0, look, context=empty)
        variable.set("set later")
        await wheel.advance(4.0)
        assert seen == ["caller's", "given", "none"]
        assert variable.get() == "set later"
        assert other[variable] == empty[variable] == "changed by a callback"


@pytest.mark.parametrize("kind", ["asyncio", "wheel"])
async def test_errors_go_to_the_loop(wheel: Wheel, kind: str) -> None:
    reported: list[dict[str, Any]] = []
    ran: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))

    def missing(key: str) -> None:
        raise KeyError(key)

    async with AsyncTimers(wheel) as timers:
        call_later, _ = await handles_of(timers, kind)
        handle = call_later(1.0, missing, "key")
        call_later(1.0, ran.append, "after")
        await wheel.advance(2.0)
    assert ran == ["after"]
    (context,) = reported
    assert context["handle"] is handle
    assert repr(context["exception"]) == "KeyError('key')"
    assert "Exception in callback" in context["message"]
    assert "missing" in context["message"]


async def test_moved(wheel: Wheel) -> None:
    async with AsyncTimers(wheel) as timers:
        ran: list[str] = []
        start = asyncio.get_running_loop().time()
        handle = timers.call_later(1.0, ran.append, "once")
        assert isinstance(handle, AsyncTimerHandle)
        await wheel.advance(0.5)
        assert handle.reschedule(2.0)
        assert handle.when() == pytest.approx(start + 2.5)
        await wheel.advance(1.5)
        assert not ran
        await wheel.advance(1.0)
        assert ran == ["once"]
        assert not handle.reschedule(1.0)
        assert handle.when() == pytest.approx(start + 2.5)
        assert not handle.cancel()
        assert not handle.cancelled()


@pytest.mark.parametrize("bad", [math.nan, "soon", None])
async def test_bad_times(wheel: Wheel, bad: Any) -> None:
    async with AsyncTimers(wheel) as timers:
        for call in (timers.call_later, timers.call_at):
            with pytest.raises((InvalidDelay, TypeError)):
                call(bad, print)
        with pytest.raises(TypeError, match="expected a callable"):
            timers.call_at(1.0, "print")  # type: ignore[arg-type]
        assert timers.timers.pending == 0
        handle = timers.call_at(math.inf, print)  # never, as asyncio's
        assert timers.timers.pending == 1
        assert handle.cancel()


@pytest.mark.parametrize("kind", ["asyncio", "wheel"])
@pytest.mark.parametrize(
    "given",
    [0, -1, -0.0, -math.inf, 1e-12, math.inf, True, np.float64(0.5), Fraction(1, 2)],
    ids=str,
)
async def test_any_number_of_seconds(wheel: Wheel, kind: str, given: Any) -> None:
    async with AsyncTimers(wheel) as timers:
        call_later, call_at = await handles_of(timers, kind)
        ran: list[str] = []
        start = asyncio.get_running_loop().time()
        later, at = call_later(given, ran.append, "later"), call_at(start + given, ran.append, "at")
        assert later.when() == pytest.approx(start + given)
        assert at.when() == start + given
        assert not ran
        await wheel.advance(2.0)
        assert sorted(ran) == ([] if given == math.inf else ["at", "later"])
        assert str(later.when()) in repr(later)
        later.cancel()
        at.cancel()
        assert given != math.inf or "cancelled" in repr(later)
