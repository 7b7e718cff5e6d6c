"""Wheel: a daemon under virtual time for one test, and a check for workers and timers left
behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import Callable, Coroutine, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, Unpack

import wheeld
from wheeld_client import DaemonNotRunning, Observer, Timers, connect
from wheeld_core import control, runtime
from wheeld_core.arguments import Seconds, step_ns
from wheeld_testing.loop import VirtualLoop, turn

if TYPE_CHECKING:
    from wheeld import DaemonOptions
    from wheeld_client import ConnectKeywords

DEFAULTS: Final[DaemonOptions] = {"capacity": 4096, "max_workers": 16, "virtual_clock": True}
GRACE_SECONDS: Final = 2.0
"""Seconds that an ending process gets to leave the wheel."""
NEVER: Final = 2**63 - 1
SHARED: Final = Path("/dev/shm")

T = TypeVar("T")


class LeftBehind(AssertionError):
    """A test has ended but left workers or timers on its wheel."""


class Moment(int):
    """A virtual time, ns, from `Wheel.advance`. Awaiting it runs everything that is due by then."""

    _walk: Callable[[], Coroutine[Any, Any, None]] | None = None

    def __await__(self) -> Generator[Any, None, int]:
        walk, self._walk = self._walk, None
        yield from (walk or turn)().__await__()
        return int(self)

    def __del__(self) -> None:
        if self._walk is not None:
            import warnings

            message = "wheel.advance() was not awaited, so no time has passed: on the wheel's loop "
            warnings.warn(message + "it is `await wheel.advance(...)`", RuntimeWarning, 2)


class Wheel(wheeld.EmbeddedDaemon):
    """A daemon of one test; as a string, what `connect` and `AsyncTimers` take.

    Made by the fixture `wheel`, or by `running`.
    """

    _observer: Observer
    _runner: asyncio.Runner | None = None
    _stack: contextlib.ExitStack[bool | None]

    def advance(self, seconds: Seconds) -> Moment:
        """Move the time; what falls due on the way can be polled without waiting.

        On the wheel's own loop (`run`, or an `async def` test) it is to be awaited: `await
        wheel.advance(30)` visits each due time of the wheel's and asyncio's timers in order, and
        runs everything that they wake before it continues. Elsewhere the time has moved when it
        returns; awaiting the result lets the loop turn.

        Parameters
        ----------
        seconds : float or timedelta
            How far, 0 or more.

        Returns
        -------
        Moment
            The virtual time by then, ns.

        Raises
        ------
        ValueError
            `seconds` is negative or not a number, or the wheel is on the real clock.
        DaemonNotRunning
            The daemon is gone.
        """
        loop = asyncio._get_running_loop()
        if not isinstance(loop, VirtualLoop) or loop.wheel is not self:
            return Moment(super().advance(seconds))
        super().advance(0)  # refuses what cannot be done
        target = min(self.now_ns() + step_ns(seconds), NEVER)
        moment = Moment(target)
        moment._walk = lambda: loop.walk(target)
        return moment

    def jump(self, seconds: Seconds) -> int:
        """Move the time at once, even on the wheel's own loop: timers that fall due do so
        together."""
        return super().advance(seconds)

    def move_ns(self, step: int) -> None:
        """As `jump`, in nanoseconds."""
        self._advance_ns(step)

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on a new asyncio loop whose time is the wheel's, as `asyncio.run` does.

        `asyncio.sleep`, `asyncio.timeout`, `loop.call_later` and timers of the wheel share one
        time, which only `advance` moves.
        """
        with asyncio.Runner(loop_factory=lambda: VirtualLoop(self)) as runner:
            return runner.run(main)

    def _run_shared(self, main: Coroutine[Any, Any, T]) -> T:
        """Run a part of a test on the loop that its async fixtures share with it."""
        if self._runner is None:
            made = asyncio.Runner(loop_factory=lambda: VirtualLoop(self))
            self._runner = self._stack.enter_context(made)
        return self._runner.run(main)

    def _run_test(self, main: Coroutine[Any, Any, T]) -> T:
        """Run a test on the loop of its fixtures, or on one of its own; no task outlives it."""
        if self._runner is None:
            return self.run(main)

        async def body() -> T:
            others = asyncio.all_tasks()
            try:
                return await main
            finally:
                left = asyncio.all_tasks() - others
                for task in left:
                    task.cancel()
                await asyncio.gather(*left, return_exceptions=True)

        return self._run_shared(body())

    def connect(self, **options: Unpack[ConnectKeywords]) -> Timers:
        """A worker of this wheel, closed when the test ends; options as in `connect`."""
        return self._stack.enter_context(connect(self, **options))

    def status(self) -> dict[str, Any]:
        """The status as `wheeld status --json` prints it."""
        with contextlib.closing(control.Connection(Path(self))) as connection:
            found: dict[str, Any] = connection.request("status")["status"]
            return found

    def now_ns(self) -> int:
        """The virtual time, ns; it begins at 0."""
        return self._observer.now_ns()

    def next_due_ns(self) -> int | None:
        """When the next timer of any worker fires; None: there is none."""
        pending = self._observer.pending(payloads=False).timers
        if not len(pending):
            return None
        now, due = self.now_ns(), pending["deadline"].copy()
        ticks = (pending["interval"] > 0) & (due <= now)
        passed = (now - due[ticks]) // pending["interval"][ticks] + 1
        due[ticks] += passed * pending["interval"][ticks]
        tick = self._observer.tick_ns
        return max(-(-int(due.min()) // tick) * tick, now)  # it fires when its tick begins


@contextlib.contextmanager
def running(
    server: wheeld.ForkServer | None = None,
    *,
    leaks: bool = False,
    **options: Unpack[DaemonOptions],
) -> Iterator[Wheel]:
    """Run a daemon for one test.

    Parameters
    ----------
    server : wheeld.ForkServer, optional
        Starts it in about 10 ms; without one it takes ten times as long.
    leaks : bool
        Whether the test may leave workers and their timers behind.
    **options
        As in `wheeld.embedded`. Default: `virtual_clock=True`, `capacity=4096`, `max_workers=16`.

    Yields
    ------
    Wheel

    Raises
    ------
    LeftBehind
        At the end, if there was no other error: a worker is still connected, timers are pending
        that nobody will receive, or memory of the daemon is still there.
    """
    start = server.embedded if server is not None else wheeld.embedded
    with contextlib.ExitStack() as stack:
        given: DaemonOptions = {**DEFAULTS, **options}
        wheel = Wheel(stack.enter_context(start(**given)))
        wheel._observer = stack.enter_context(Observer(wheel))
        facts = json.loads((Path(wheel) / runtime.DAEMON_FILE).read_text("utf-8"))
        wheel._stack = stack.enter_context(contextlib.ExitStack())
        yield wheel
        wheel._stack.close()
        left = "" if leaks else _left_on(wheel)
    places = [Path(wheel), *SHARED.glob(facts["segment_prefix"] + "*")]
    if there := [str(place) for place in places if place.exists()]:
        left += f"the daemon ended and left {', '.join(there)}"
    if left:
        raise LeftBehind(left)


def _left_on(wheel: Wheel) -> str:
    """A message about remaining timers and operations; empty if nothing is left."""
    if not wheel._observer.workers() and not len(wheel._observer.pending(payloads=False).timers):
        return ""
    give_up = time.monotonic() + GRACE_SECONDS
    try:
        while (status := wheel.status())["workers"] and time.monotonic() < give_up:
            if any(one["pid"] == os.getpid() for one in status["workers"]):
                break  # a worker of this process, which will not leave any more
            time.sleep(0.01)
    except DaemonNotRunning:
        return ""  # the test has stopped it
    if status["workers"]:
        each = (
            f"{one['name']} (pid {one['pid']}, {one['pending']} timers)"
            for one in status["workers"]
        )
        return (
            f"the test has left workers on its wheel: {', '.join(each)}. Close them (`with "
            "connect(...)`), end their processes, or mark the test with `wheel(leaks=True)`"
        )
    if status["pending"]:
        return f"the test has left {status['pending']} timers that no worker will receive"
    return ""
