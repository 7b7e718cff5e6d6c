"""call_later and dispatch."""

from __future__ import annotations

import logging
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from local_wheel import MS, SECOND, LocalTimers, LocalWheel, cookies
from wheeld_client import ClientClosed, TimerHandle


def test_callbacks_run_in_order_with_their_arguments(
    wheel: LocalWheel, timers: LocalTimers
) -> None:
    ran: list[Any] = []
    where = []
    timers.call_later(0.002, ran.append, "second")
    timers.call_later(0.001, lambda *args: ran.append(args), 1, "two")
    timers.call_later(0.003, lambda: where.append(threading.get_ident()))
    assert timers.pending == 3
    wheel.advance(3 * MS)
    assert ran == []  # not before dispatch
    assert len(timers.dispatch()) == 0
    assert ran == [(1, "two"), "second"]
    assert where == [threading.get_ident()]
    wheel.advance(SECOND)
    assert len(timers.dispatch()) == 0
    assert len(ran) == 2


def test_dispatch_returns_the_other_events(wheel: LocalWheel, timers: LocalTimers) -> None:
    ran: list[int] = []
    for i in range(6):
        if i % 2:
            timers.schedule(0.001, i)
        else:
            timers.call_later(0.001, ran.append, i)
    wheel.advance(MS)
    events = timers.dispatch()
    assert cookies(events) == [1, 3, 5]
    assert events.dtype == timers.expiration_dtype
    assert ran == [0, 2, 4]
    timers.schedule(0, 7)
    wheel.settle()
    assert cookies(timers.dispatch()) == [7]


def test_callback_that_cancels_a_tick(wheel: LocalWheel, timers: LocalTimers) -> None:
    answers: list[bool] = []
    kept, gone = (timers.schedule(0.001, number, interval=0.001) for number in (1, 2))
    timers.call_later(0.001, lambda: answers.append(timers.cancel(gone)))
    wheel.advance(MS)
    assert cookies(timers.dispatch()) == [1]
    assert answers == [True]
    timers.call_later(0.0, lambda: answers.append(timers.cancel(kept)))
    one = timers.schedule(0.0, 3)
    wheel.advance(MS)
    assert timers.dispatch()["timer_id"].tolist() == [one]
    assert answers == [True, True]


def test_cancelled_callback_is_never_called(wheel: LocalWheel, timers: LocalTimers) -> None:
    ran: list[int] = []
    kept, dropped = timers.call_later(0.001, ran.append, 1), timers.call_later(0.001, ran.append, 2)
    due = timers.call_later(0.001, ran.append, 3)
    assert isinstance(kept, TimerHandle)
    assert dropped.cancel() is True
    assert dropped.cancel() is False
    wheel.advance(MS)
    assert due.cancel() is True  # not read yet
    assert due.cancel() is False
    timers.dispatch()
    assert ran == [1]
    assert kept.cancel() is False
    assert timers.pending == 0


def test_cancel_from_another_callback(wheel: LocalWheel, timers: LocalTimers) -> None:
    ran: list[str] = []
    answers: list[bool] = []
    later = timers.call_later(0.005, ran.append, "later")
    together = timers.call_later(0.001, ran.append, "together")

    def cancels() -> None:
        ran.append("first")
        answers.extend([together.cancel(), later.cancel()])

    timers.call_later(0, cancels)
    wheel.advance(MS)
    timers.dispatch()
    wheel.advance(SECOND)
    timers.dispatch()
    assert ran == ["first"]
    assert answers == [True, True]
    assert together.cancel() is later.cancel() is False
    assert not timers._callbacks.handles


class Callback:
    def __call__(self) -> None:
        raise AssertionError("it was called")


def refuse(wheel: LocalWheel, timers: LocalTimers, handle: TimerHandle) -> None:
    timers.cancel(handle.id)
    assert timers.reschedule(handle.id, 1.0) is handle.reschedule(1.0) is False


ENDS: dict[str, Callable[[LocalWheel, LocalTimers, TimerHandle], object]] = {
    "its handle": lambda wheel, timers, handle: handle.cancel(),
    "its id": lambda wheel, timers, handle: timers.cancel(handle.id),
    "its id, not blocking": lambda wheel, timers, handle: timers.cancel(handle.id, block=False),
    "a batch": lambda wheel, timers, handle: timers.cancel_many([1, handle.id, handle.id]),
    "a refused move": refuse,
    "poll": lambda wheel, timers, handle: (wheel.advance(SECOND), timers.poll()),
    "the wheel's end": lambda wheel, timers, handle: timers._callbacks.lose(),
    "close": lambda wheel, timers, handle: timers.close(),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_callback_that_has_ended_leaves_nothing(
    wheel: LocalWheel, timers: LocalTimers, end: str
) -> None:
    callback = Callback()
    watcher = weakref.ref(callback)
    handle = timers.call_later(1.0, callback)
    del callback
    ENDS[end](wheel, timers, handle)
    assert not timers._callbacks.handles
    assert watcher() is None
    if end == "close":
        with pytest.raises(ClientClosed):
            handle.cancel()
        return
    assert handle.cancel() is handle.reschedule(1.0) is False
    wheel.advance(2 * SECOND)
    timers.dispatch()


def test_a_handle_of_an_ended_wheel_ends_no_other_timer(timers: LocalTimers) -> None:
    old = timers.call_later(1.0, Callback())
    timers._callbacks.lose()
    assert old.cancel() is old.reschedule(5.0) is False
    assert timers.cancel(old.id) is True


@pytest.mark.parametrize("due", [False, True])
def test_callbacks_that_a_batch_cancels(wheel: LocalWheel, timers: LocalTimers, due: bool) -> None:
    ran: list[int] = []
    handles = [timers.call_later(0.001 * (1 + i % 2), ran.append, i) for i in range(6)]
    if due:
        wheel.advance(MS)
    won = timers.cancel_many([handle.id for handle in handles])
    assert won.tolist() == [not due, True] * 3
    assert [handle.cancel() for handle in handles[:2]] == [due, False]
    wheel.advance(SECOND)
    timers.dispatch()
    assert ran == ([2, 4] if due else [])  # the one was cancelled by its handle


def test_moved_callback(wheel: LocalWheel, timers: LocalTimers) -> None:
    ran: list[int] = []
    handle = timers.call_later(0.001, ran.append, 1)
    assert handle.reschedule(0.005) is True
    wheel.advance(5 * MS - 1)
    timers.dispatch()
    assert ran == []
    wheel.advance(1)
    assert handle.reschedule(1.0) is False
    timers.dispatch()
    assert ran == [1]
    assert handle.reschedule(1.0) is False


def test_error_in_a_callback_harms_no_other(
    wheel: LocalWheel, timers: LocalTimers, caplog: pytest.LogCaptureFixture
) -> None:
    ran: list[int] = []
    timers.call_later(0, ran.append, 1)
    timers.call_later(0, lambda: 1 / 0)
    timers.call_later(0, ran.append, 2)
    timers.schedule(0, 9)
    wheel.settle()
    with caplog.at_level(logging.ERROR, "wheeld"):
        assert cookies(timers.dispatch()) == [9]
    assert ran == [1, 2]
    assert "ZeroDivisionError" in caplog.text


def test_exception_handler_is_told(wheel: LocalWheel, timers: LocalTimers) -> None:
    seen: list[tuple[TimerHandle, BaseException, BaseException | None]] = []
    timers.exception_handler = lambda handle, error: seen.append((handle, error, sys.exception()))
    handle = timers.call_later(0, {}.__getitem__, "missing")
    wheel.settle()
    timers.dispatch()
    assert [(h, type(e)) for h, e, _ in seen] == [(handle, KeyError)]
    assert seen[0][2] is seen[0][1]  # as in an `except`
    assert sys.exception() is None


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_interrupt_loses_no_callback(
    wheel: LocalWheel, timers: LocalTimers, kind: type[BaseException]
) -> None:
    ran: list[int] = []

    def interrupt() -> None:
        raise kind

    timers.call_later(0, ran.append, 1)
    timers.call_later(0, interrupt)
    timers.call_later(0, ran.append, 2)
    timers.schedule(0, 9)
    wheel.settle()
    with pytest.raises(kind):
        timers.dispatch()
    assert cookies(timers.dispatch()) == [9]
    assert ran == [1, 2]


def test_handler_that_raises_loses_no_callback(wheel: LocalWheel, timers: LocalTimers) -> None:
    ran: list[int] = []

    def handler(handle: TimerHandle, error: BaseException) -> None:
        raise error

    timers.exception_handler = handler
    timers.call_later(0, {}.__getitem__, "missing")
    timers.call_later(0, ran.append, 2)
    wheel.settle()
    with pytest.raises(KeyError):
        timers.dispatch()
    timers.dispatch()
    assert ran == [2]


def test_max_events_bounds_a_dispatch(wheel: LocalWheel, timers: LocalTimers) -> None:
    ran: list[int] = []
    for i in range(10):
        timers.call_later(0, ran.append, i)
    wheel.settle()
    timers.dispatch(max_events=4)
    assert ran == [0, 1, 2, 3]
    timers.dispatch(0.0, 4)
    timers.dispatch()
    assert ran == list(range(10))


def test_handles_are_freed(wheel: LocalWheel, timers: LocalTimers) -> None:
    class Callback:
        def __call__(self) -> None:
            pass

    callbacks = [Callback(), Callback()]
    watchers = [weakref.ref(callback) for callback in callbacks]
    timers.call_later(0, callbacks[0])
    timers.call_later(9, callbacks[1]).cancel()
    wheel.settle()
    timers.dispatch()
    callbacks.clear()
    assert [watcher() for watcher in watchers] == [None, None]


def test_refused_callback_leaves_nothing(wheel: LocalWheel, timers: LocalTimers) -> None:
    with pytest.raises(ValueError):
        timers.call_later(-1, print)
    timers.call_later(0, lambda: timers.call_later(0, print))  # a callback may call any of it
    wheel.settle()
    timers.dispatch()
    assert timers.pending == 1


def test_threads_arm_callbacks_while_one_dispatches(wheel: LocalWheel, timers: LocalTimers) -> None:
    ran: list[int] = []

    def arm(base: int) -> None:
        for i in range(200):
            timers.call_later(0, ran.append, base + i)

    threads = [threading.Thread(target=arm, args=(n * 200,)) for n in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads) or timers.pending:
        wheel.settle()
        assert len(timers.dispatch()) == 0, "an event without its callback"
    assert len(timers.dispatch()) == 0
    assert sorted(ran) == list(range(600))


# -- in the middle of another call -----------------------------------------------------------------


class Delay:
    """Does something when it is read: what a destructor or a signal handler may do at any time."""

    does: Callable[[], object]

    def __float__(self) -> float:
        self.does()
        return 0.0


def test_cancel_in_the_middle_of_call_later(wheel: LocalWheel, timers: LocalTimers) -> None:
    ran: list[int] = []
    old = timers.call_later(1.0, ran.append, 1)
    delay: Any = Delay()
    delay.does = lambda: ran.append(old.cancel())
    arguments = (delay, ran.append, 2)
    thread = threading.Thread(target=timers.call_later, args=arguments, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive(), "it waits for itself"
    wheel.settle()
    timers.dispatch()
    assert ran == [True, 2]


NEVER = 10_000
"""More instructions than there are."""


class Interruption:
    """Runs something before an instruction of callbacks.py, as a signal handler does.

    Traces for as long as the block lasts: CPython 3.14 misses instructions when it has just begun.
    """

    def __init__(self) -> None:
        self.left = 0
        self._does: Callable[[], object]

    def after(self, number: int, does: Callable[[], object]) -> None:
        self.left, self._does = number, does

    def __enter__(self) -> Interruption:
        sys.settrace(self._enter)
        return self

    def __exit__(self, *exception: object) -> None:
        sys.settrace(None)

    def _enter(self, frame: Any, event: str, argument: object) -> Any:
        if not frame.f_code.co_filename.endswith("timers/callbacks.py"):
            return None
        frame.f_trace_opcodes = True
        return self._step

    def _step(self, frame: Any, event: str, argument: object) -> Any:
        if event == "opcode":
            self.left -= 1
            if self.left == 0:
                self._does()
        return self._step


def test_every_call_in_the_middle_of_every_other(wheel: LocalWheel, timers: LocalTimers) -> None:
    ran: list[int] = []
    seen: list[int] = []

    def meanwhile() -> None:
        timers.call_later(0.0, ran.append, 3)
        timers.schedule(0.0, 13)
        timers.call_later(5.0, ran.append, -3).cancel()
        wheel.settle()
        seen.extend(cookies(timers.dispatch()))

    with Interruption() as interruption:
        for number in (NEVER, NEVER, *range(1, NEVER)):
            ran.clear()
            seen.clear()
            gone = timers.call_later(0.0, ran.append, -1)
            due = timers.call_later(0.0, ran.append, 1)
            timers.schedule(0.0, 11)
            wheel.settle()
            interruption.after(number, meanwhile)
            timers.call_later(0.0, ran.append, 2)
            timers.call_later(5.0, ran.append, -2).cancel()
            seen.extend(cookies(timers.dispatch()))
            met = interruption.left <= 0
            interruption.after(0, meanwhile)  # no more of it
            assert gone.cancel() is due.cancel() is False
            wheel.settle()
            seen.extend(cookies(timers.dispatch()))
            assert sorted(ran) == sorted([-1, 1, 2] + [3] * met), number
            assert sorted(seen) == [11] + [13] * met, number
            assert timers.pending == 0
            assert not timers._callbacks.handles
            if not met and number < NEVER:
                break
    assert number > 100


def test_a_handle_that_is_over_holds_nothing(wheel: LocalWheel, timers: LocalTimers) -> None:
    class Big:
        def act(self, other: Big) -> None:
            pass

    for cancel in (False, True):
        big, argument = Big(), Big()
        handle = timers.call_later(0.0, big.act, argument)
        watchers = [weakref.ref(big), weakref.ref(argument)]
        del big, argument
        assert all(watcher() for watcher in watchers)
        if cancel:
            assert handle.cancel()
        else:
            wheel.settle()
            timers.dispatch()
        assert [watcher() for watcher in watchers] == [None, None]


@pytest.mark.parametrize("callback", [None, 3, "print", []])
def test_what_cannot_be_called_is_refused(timers: LocalTimers, callback: Any) -> None:
    with pytest.raises(TypeError, match="callable") as caught:
        timers.call_later(0.0, callback)
    assert repr(callback) in str(caught.value)
    assert timers.pending == 0


def test_keywords_are_passed_on(wheel: LocalWheel, timers: LocalTimers) -> None:
    said: list[object] = []

    def note(text: str, *, loud: bool = False) -> None:
        said.append((text, loud))

    timers.call_later(0.0, note, "a", loud=True)
    timers.call_later(0.0, note, text="b")
    timers.call_later(0.0, lambda **all: said.append(all), anything=1)
    wheel.advance(MS)
    timers.dispatch()
    assert said == [("a", True), ("b", False), {"anything": 1}]


def test_an_option_that_neither_has(timers: LocalTimers) -> None:
    with pytest.raises(TypeError, match=r"neither call_later\(\) nor .* has blok="):
        timers.call_later(0.0, lambda: None, blok=False)


def test_a_handle_is_as_good_as_its_id(timers: LocalTimers) -> None:
    handle = timers.call_later(1000.0, print)
    assert timers.reschedule(handle, 2000.0)
    assert timers.cancel(handle)
    assert not timers.cancel(handle)
    assert not handle.cancel()
