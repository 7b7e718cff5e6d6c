"""Pools for tests: over a LocalWheel in this process, or in forked children that share it."""

from __future__ import annotations

import gc
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from local_wheel import LocalWheel
from wheeld_client import MemoryPool
from wheeld_core import _native
from wheeld_core.views import PoolsView

LONG = 60.0
"""Seconds that a test waits for what must happen."""

LENIENT = ("a", 1000, 400, False)
STRICT = ("a", 1000, 1000, True)


@contextmanager
def one_pool(
    spec: tuple[str, int, int, bool] = LENIENT, workers: int = 1
) -> Iterator[tuple[LocalWheel, list[MemoryPool]]]:
    with LocalWheel(64, max(workers, 4), pools=(spec,)) as wheel:
        yield wheel, [patient(MemoryPool(wheel.worker(row), spec[0])) for row in range(workers)]


def patient(pool: MemoryPool) -> MemoryPool:
    """The same pool, whose waiters sleep until they are woken and pass nobody by, who looks stopped
    because the machine is slow."""
    pool._patience_ns = pool._slice_ns = 3600 * 10**9
    return pool


def timers_of(pool: MemoryPool) -> Any:
    return next(one for one in gc.get_referents(pool) if isinstance(one, _native.Worker))


def usual(pool: MemoryPool) -> MemoryPool:
    pool._patience_ns, pool._slice_ns = 10**9, 10**9 // 4
    return pool


def ledger(wheel: LocalWheel, row: int, pool: int = 0) -> Any:
    return PoolsView(wheel.shared("pools")).ledgers[pool, row]


def words_of(wheel: LocalWheel, pool: int = 0) -> Any:
    return PoolsView(wheel.shared("pools")).pools[pool]


def die(wheel: LocalWheel, row: int) -> None:
    wheel.depart(row)
    wheel.settle()


class Call(threading.Thread):
    """A call in a thread, and what came of it."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        super().__init__(daemon=True)
        self.function, self.args = function, args
        self.result: Any = None
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.result = self.function(*self.args)
        except BaseException as error:
            self.error = error

    def outcome(self) -> Any:
        self.join(LONG)
        assert not self.is_alive(), "the call hangs"
        if self.error is not None:
            raise self.error
        return self.result


class Process:
    """A forked child that is the worker of one row, driven by lines; killed at the end."""

    def __init__(
        self, wheel: LocalWheel, row: int, work: Callable[[MemoryPool, Callable[[str], None]], None]
    ) -> None:
        self.wheel, self.row = wheel, row
        wheel.worker(row)  # the child takes its place
        wheel.shared("pools")
        reader, writer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(reader)
                self._live(work, writer)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        os.close(writer)
        self.lines = os.fdopen(reader)

    def _live(self, work: Callable[..., None], writer: int) -> None:
        timers = self.wheel._timers(self.row, f"w{self.row}")
        pool = MemoryPool(timers, self.wheel.pools[0][0])
        work(pool, lambda line: (os.write(writer, f"{line}\n".encode()), None)[1])
        os._exit(0)

    def says(self) -> str:
        return self.lines.readline().strip()

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def stop(self) -> None:
        self.signal(signal.SIGSTOP)
        _, status = os.waitpid(self.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self.lines.close()
        self.pid = 0
        die(self.wheel, self.row)

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *exception: object) -> None:
        if self.pid:
            self.kill()
