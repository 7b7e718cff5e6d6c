"""Operations for tests of the purgatory, and a look into the watch segment."""

from __future__ import annotations

import asyncio
import gc
import mmap
import select
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from local_aio import LocalAsyncTimers
from local_wheel import LocalTimers
from wheeld_client import (
    AsyncPurgatory,
    ClientClosed,
    DelayedOperation,
    OperationCancelled,
    Purgatory,
    Timers,
)
from wheeld_core import _native
from wheeld_core.views import record, records

only_threads = pytest.mark.parametrize("purgatory", ["threads"], indirect=True)
"""The test completes operations in other threads, whose callbacks a loop would have to run."""


class Op(DelayedOperation):
    """An operation whose condition the test sets, and that says what became of it.

    Attributes
    ----------
    ready : bool
        The condition.
    tries : int
        Calls of `try_complete`.
    ran : list
        "complete" and "expire", as the hooks ran; `log`, when given, gets the name, too.
    """

    def __init__(
        self,
        timeout: float | None = None,
        name: Any = None,
        *,
        ready: bool = False,
        log: list[Any] | None = None,
    ) -> None:
        super().__init__(timeout)
        self.name, self.ready, self.log = name, ready, log
        self.tries = 0
        self.ran: list[str] = []
        self.error: BaseException | None = None

    def try_complete(self) -> bool:
        self.tries += 1
        if self.error is not None:
            raise self.error
        return self.ready and self.force_complete()

    def on_complete(self) -> None:
        self.ran.append("complete")
        if self.log is not None:
            self.log.append(self.name)

    def on_expiration(self) -> None:
        self.ran.append("expire")

    def __repr__(self) -> str:
        return f"<Op {self.name!r} {self.state}>"


class Scripted(Op):
    """An operation whose `try_complete` is a function of the test: called with the operation."""

    def __init__(
        self, script: Callable[[Scripted], bool], timeout: float | None = None, name: Any = None
    ) -> None:
        super().__init__(timeout, name)
        self.script = script

    def try_complete(self) -> bool:
        self.tries += 1
        return self.script(self)


class Hooked(Op):
    """An operation whose hooks are functions of the test."""

    def __init__(
        self,
        timeout: float | None = None,
        name: Any = None,
        *,
        complete: Callable[[], object] = lambda: None,
        expire: Callable[[], object] = lambda: None,
        ready: bool = False,
    ) -> None:
        super().__init__(timeout, name, ready=ready)
        self.complete, self.expire = complete, expire

    def on_complete(self) -> None:
        super().on_complete()
        self.complete()

    def on_expiration(self) -> None:
        super().on_expiration()
        self.expire()


def raising(kind: type[BaseException], **options: Any) -> Hooked:
    def fail(*anything: Any) -> None:
        raise kind

    return Hooked(0.001, complete=fail, expire=fail, **options)


def watch_all(purgatory: Purgatory, ops: Iterable[Op], keys: list[Any]) -> None:
    for op in ops:
        assert purgatory.try_complete_else_watch(op, keys) is False


def readable(timers: Timers) -> bool:
    return bool(select.select([timers.fileno()], [], [], 0)[0])


def dispatch_until_over(timers: Timers, op: DelayedOperation, seconds: float = 60.0) -> None:
    give_up = time.monotonic() + seconds
    while not op.is_completed:
        assert time.monotonic() < give_up, f"{op!r} after {seconds} s"
        timers.dispatch(1.0)


class Later:
    """An executor that runs what was submitted when the test says so."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], object]] = []

    def submit(self, fn: Callable[..., object], *args: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()

        def call() -> None:
            try:
                future.set_result(fn(*args, **options))
            except BaseException as error:
                future.set_exception(error)

        self.calls.append(call)
        return future

    def run(self) -> None:
        while self.calls:
            self.calls.pop(0)()


def living(*kinds: type) -> int:
    """How many objects of these kinds there are. (A weak reference dies as soon as the collector
    thinks that its object is garbage, though nothing can free it.)"""
    gc.collect()
    gc.collect()
    return sum(issubclass(type(thing), kinds) for thing in gc.get_objects())  # runs no proxy


def run_threads(works: Iterable[Callable[[], object]]) -> None:
    calls = list(works)
    barrier = threading.Barrier(len(calls))
    errors: list[BaseException] = []

    def run(call: Callable[[], object]) -> None:
        barrier.wait()
        try:
            call()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


class WatchView:
    """A watch segment: who watches which buckets, what is marked for whom."""

    def __init__(self, memory: mmap.mmap) -> None:
        header = record(memory, "watch")
        words, self.row_count = int(header["words"]), int(header["row_count"])
        count = _native.BUCKETS * words
        self.directory = np.frombuffer(
            memory, "u8", count=count, offset=int(header["directory_off"])
        ).reshape(_native.BUCKETS, words)
        self.rows = records(memory, "watch_row", int(header["rows_off"]), self.row_count)

    def buckets(self, row: int) -> set[int]:
        bits = self.directory[:, row // 64] >> np.uint64(row % 64) & np.uint64(1)
        return set(np.flatnonzero(bits).tolist())

    def watched(self) -> int:
        return int(np.unpackbits(self.directory.reshape(-1).view(np.uint8)).sum())

    def marks(self, row: int) -> set[int]:
        marks = self.rows["dirty"][row]
        return {
            16 * i + bit
            for i in np.flatnonzero(marks).tolist()
            for bit in range(16)
            if int(marks[i]) >> bit & 1
        }

    def mark(self, row: int, bucket: int) -> None:
        self.rows["dirty"][row, bucket // 16] |= np.uint64(2**64 - 2**16 | 1 << bucket % 16)

    def say(self, row: int, bucket: int) -> None:
        self.rows["any"][row] |= np.uint64(1 << bucket // 1024)

    def counter(self, row: int, name: str) -> int:
        return int(self.rows[name][row])


def bucket_of(purgatory: Purgatory, view: WatchView, row: int, key: Any) -> int:
    assert view.buckets(row) == set()
    purgatory.try_complete_else_watch(Op(), [key])
    (bucket,) = view.buckets(row)
    purgatory.cancel_for_key(key)
    assert view.buckets(row) == set()
    return int(bucket)


def chain(
    purgatory: Purgatory, length: int, how: str, order: list[Any], timeout: float | None = None
) -> list[Hooked]:
    ops: list[Hooked] = []

    def next_of(number: int) -> Callable[[], object]:
        def hook() -> None:
            order.append(("begins", number))
            if number + 1 < length:
                after = ops[number + 1]
                after.ready = True
                if how == "check":
                    assert purgatory.check_and_complete(number + 1) == 1
                elif how == "force":
                    assert after.force_complete() is True
                    assert after.is_completed
                else:
                    assert purgatory.try_complete_else_watch(after, [0]) is True
            order.append(("ends", number))

        return hook

    ops += [Hooked(timeout, number, complete=next_of(number)) for number in range(length)]
    for op in ops if how != "watch" else ops[:1]:
        purgatory.try_complete_else_watch(op, [op.name])
    return ops


def waiting(purgatory: AsyncPurgatory, op: Op, keys: list[Any]) -> asyncio.Task[bool]:
    return asyncio.create_task(purgatory.wait(op, keys))


def empty(purgatory: AsyncPurgatory) -> bool:
    return purgatory.watched == purgatory.num_delayed == 0 and not purgatory._waiters


class LoopPurgatory(AsyncPurgatory):
    """An AsyncPurgatory with the calls of a Purgatory, which awaits what is watched."""

    def try_complete_else_watch(self, op: Any, keys: Iterable[Any]) -> bool:
        if id(op) in self._waiters:
            return super().try_complete_else_watch(op, keys)
        future: Any = self.begin(op, keys)  # type: ignore[arg-type]
        if hasattr(future, "operation"):
            del future.operation  # an operation lives no longer than in threads
        self.begun.append((weakref.ref(op), future))
        return self._taken is True

    def _take(self, op: Any, keys: Any) -> bool | None:
        self._taken: bool | None = super()._take(op, keys)
        return self._taken

    def check_futures(self) -> None:
        for ref, future in self.begun:
            op = ref()
            assert future.done() is (op is None or op.state != "waiting")
            if op is not None and op.state == "completed":
                assert future.result() is not op.is_expired
            elif op is not None and op.state == "cancelled":
                assert isinstance(future.exception(), (OperationCancelled, ClientClosed))


@contextmanager
def loop_purgatories(timers: LocalTimers) -> Iterator[Callable[[str], LoopPurgatory]]:
    made: list[LoopPurgatory] = []
    on_loop = LocalAsyncTimers(timers)

    async def make(name: str) -> LoopPurgatory:
        made.append(LoopPurgatory(on_loop, name))
        made[-1].begun = []
        return made[-1]

    with asyncio.Runner() as runner:
        runner.run(on_loop.__aenter__())
        yield lambda name: runner.run(make(name))
        runner.run(asyncio.sleep(0))
        for purgatory in made:
            purgatory.check_futures()
        runner.run(on_loop.__aexit__(None, None, None))


@contextmanager
def loop_purgatory(timers: LocalTimers, name: str) -> Iterator[LoopPurgatory]:
    with loop_purgatories(timers) as make:
        yield make(name)
