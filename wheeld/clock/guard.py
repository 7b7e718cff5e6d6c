"""Keeps a clock running: starts it, starts another one after its death, replaces one that hangs.

A daemon that serves never gives up: while no clock can be started it logs that, and tries again. It
ends only if the memory itself is damaged, so that no clock could drive the wheel.

If a clock dies before it has answered an order, the next one gets it again; so carrying out an
order twice must do no harm.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import itertools
import logging
import os
import termios
import time
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

from wheeld.config.settings import Config
from wheeld.processes.children import ChildGuard
from wheeld.processes.messages import Notice, Order
from wheeld.processes.spawn import CLOCK
from wheeld.resources.events import Kind
from wheeld.resources.handover import Predecessor
from wheeld.resources.owned import Resources
from wheeld_core import _native, runtime, trust
from wheeld_core.control import Message
from wheeld_core.errors import WheelError
from wheeld_core.presence import STOPPING

log = logging.getLogger("wheeld")

START_TRIES = 10
"""Before it serves, a daemon gives up after this many clocks in a row have ended without driving
the wheel."""
START_SECONDS = 20.0
"""How long a starting clock may go without a sign of life. A recovery of a hundred million slots
takes longer than that, and shows its progress by the heartbeat."""
STOP_SECONDS = 5.0
"""How long a stopping clock may take to end its pass; then it is killed."""
LOCK_SECONDS = 10.0
"""How long a new clock waits for its predecessor to be gone."""
EVICT_LOOK_SECONDS = 1.0
"""How often to look for misbehaving workers, if --evict-after is set."""
IDLE_LOOK_SECONDS = 60.0
"""How often to look at a clock that sleeps for a long time."""
NUDGE_SECONDS = 0.5
"""The shortest time between two orders to a clock to check for submissions."""
CLOCK_SEGMENTS = ("wheel", "slots", "registry", "keys", "trace")
"""The segments that a clock maps from the start; the last one is optional."""
_AWAKE = -(2**63)


class DamagedMemory(WheelError):
    """The segments have been damaged: no clock can drive this wheel."""


class ClockRefused(WheelError):
    """The clock reports that it cannot start, and why."""


class ClockGone(WheelError):
    """The clock process ended before it answered, and no other one will start."""


class ClockGuard(ChildGuard):
    """Keeps one clock running at a time; `before` drives the wheel until the first clock of this
    guard does.

    `workers` returns one message for each worker that a new clock has to serve from the start.
    `on_skipped` is called with the rows of workers whose segments are damaged, and a description of
    the damage; `on_failure` with a message when the memory is damaged, so that no clock can be kept
    running.
    """

    first_pause = 0.0
    least_pause = 0.01
    patience = 0.001

    def __init__(
        self,
        resources: Resources,
        workers: Callable[[], list[Message]],
        on_skipped: Callable[[list[tuple[int, str]]], None],
        on_failure: Callable[[str], None],
        before: Predecessor | None = None,
    ) -> None:
        super().__init__(CLOCK)
        self._resources = resources
        self._workers = workers
        self._on_skipped = on_skipped
        self._on_failure = on_failure
        self._before = before
        self.handed_over: dict[str, float] = {}
        """How the first clock took over the wheel, after a restart in place."""
        self._ready: asyncio.Future[Message]
        self._answers: defaultdict[tuple[str, int], deque[asyncio.Future[Message]]]
        self._answers = defaultdict(deque)
        """The answers to orders, by name and key, in the order of those; nobody may wait for one
        any more."""
        self._drove = False
        """Whether the last clock drove the wheel."""
        self._died: float | None = None
        self._running = asyncio.Event()
        self._look = asyncio.Event()
        self._watcher: asyncio.Task[None] | None = None
        self._bell = self._open_bell()
        self._former: list[int] = []
        self._next_nudge = 0.0
        self.trouble: str | None = None
        """Why no clock runs, when none could be started."""
        self.locked_out = False
        """Another process holds the clock's lock: the segments may be in use and must stay."""
        self.on_look: Callable[[], None] = lambda: None
        """Called at each look at the clock's progress."""
        self.on_start: Callable[[], None] = lambda: None

    def _open_bell(self) -> int:
        return os.open(self._resources.directory / runtime.CLOCK_FIFO, trust.FIFO_FLAGS)

    def renew_bell(self) -> None:
        """End the clock, because the FIFOs or the lock were made again; the next one opens the new
        ones. Workers ring the former FIFO until they have reconnected."""
        fresh = self._open_bell()
        asyncio.get_running_loop().add_reader(self._bell, self._rung_at_former, self._bell)
        self._former.append(self._bell)
        self._bell = fresh
        self.kill()

    def _rung_at_former(self, bell: int) -> None:
        with contextlib.suppress(BlockingIOError):  # the ending clock reads it, too
            os.read(bell, 4096)
        self.send(Order.LOOK)

    def _close_bells(self) -> None:
        while self._former:
            bell = self._former.pop()
            asyncio.get_running_loop().remove_reader(bell)
            os.close(bell)
        if self._bell >= 0:
            os.close(self._bell)
            self._bell = -1

    @property
    def _config(self) -> Config:
        return self._resources.config

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child is not None else None

    @property
    def runs(self) -> bool:
        return self._running.is_set() and self._connected

    def is_well(self, within: float) -> bool:
        """Whether there is a clock, and it has made progress in this time if it had to. It reads
        two words, and does not wake a sleeping clock."""
        if not self.runs or self._resources.damage() is not None:
            return False
        header, now = self._resources.wheel.header, _native.read_clock()
        sleep_until = int(header["sleep_until"])
        if sleep_until == _AWAKE:
            return now - int(header["heartbeat"]) < within * 1e9
        if header["virtual_clock"]:
            return True
        wakes_by = sleep_until + int(header["tick_ns"])  # a deadline may wait for its tick's end
        return now - wakes_by < within * 1e9

    async def start(self) -> None:
        """Start the first clock; returns when it drives the wheel. `WheelError`: none can be
        started."""
        self._start_keeping()
        assert self._keeping is not None
        running = asyncio.create_task(self._running.wait())
        await asyncio.wait({self._keeping, running}, return_when=asyncio.FIRST_COMPLETED)
        running.cancel()
        if self._keeping.done():
            self._keeping.result()
        self._watcher = asyncio.create_task(self._watch())

    def _greet(self) -> None:
        # Orders from now on reach this clock; those sent before are part of this message.
        kinds = [kind for kind in CLOCK_SEGMENTS if kind in self._resources.memories]
        self.send(
            Order.HELLO,
            **self._config.introduction,
            supervisor=os.getpid(),
            segments={kind: self._resources.names[kind] for kind in kinds},
            bell=str(self._resources.directory / runtime.CLOCK_FIFO),
            lock=str(self._resources.directory / runtime.CLOCK_LOCK),
            lock_seconds=LOCK_SECONDS,
            slabs=self._config.first_slabs,
            pin_cpu=self._config.pin_cpu,
            workers=self._workers(),
        )

    def _heard(self, message: Message) -> None:
        op = message["op"]
        if op == Notice.READY:
            self._ready.set_result(message)
        elif op == Notice.AWAKE:
            self.look_soon()
        elif op == Notice.WAITS:
            if self._before is not None:
                self._before.retire()
        else:
            key = int(message.get("row") or message.get("to") or 0)
            waiting = self._answers[op, key]
            answered = waiting.popleft() if waiting else None
            if not waiting:
                del self._answers[op, key]
            if answered is not None and not answered.done():
                answered.set_result(message)

    async def _run(self) -> None:
        """Start one clock; a clock that fails leaves nothing behind."""
        self._drove = False
        if (damage := self._resources.damage()) is not None:
            raise DamagedMemory(damage)
        self._resources.mend()
        self._resources.lost_slots = False
        self._ready = asyncio.get_running_loop().create_future()
        life = asyncio.create_task(super()._run())
        try:
            await self._begin(await self._first_word(life))
            # To the end of its messages, also when it is dead: an answer that it gave before is
            # good, and must not be taken for its successor's.
            await life
        finally:
            life.cancel()
            await asyncio.gather(life, return_exceptions=True)
            if not self._stopping:
                self._running.clear()
            answers = [*itertools.chain(*self._answers.values())]
            self._answers.clear()
            for answer in answers:
                if not answer.done():
                    answer.set_exception(ClockGone("the clock process is gone"))

    async def _first_word(self, life: asyncio.Task[None]) -> Message:
        """The new clock's answer once it drives the wheel; TimeoutError if it makes no progress."""
        heartbeat = self._resources.wheel.header["heartbeat"]
        either: set[asyncio.Future[Any]] = {life, self._ready}
        last = None
        while last != (last := int(heartbeat)):
            await asyncio.wait(
                either,
                timeout=START_SECONDS + LOCK_SECONDS,
                return_when=asyncio.FIRST_COMPLETED,
            )
            word = self._ready.result() if self._ready.done() else None
            if word is not None and ("failed" in word or not life.done()):
                return word
            if life.done():
                life.result()
                raise ClockGone("the clock process is gone")
            if (damage := self._resources.damage()) is not None:
                raise DamagedMemory(damage)  # reading it would end this process (SIGBUS)
        raise TimeoutError("no sign of life")

    async def _begin(self, ready: Message) -> None:
        if "failed" in ready:
            self.locked_out = ready["locked_out"]
            raise ClockRefused(ready["failed"])
        if ready["skipped"]:
            self._on_skipped(ready["skipped"])
        self._resources.note(runtime.CLOCK_LOCK, tuple(ready["lock_file"]))
        log.info("clock (pid %s) drives %s timers", self.pid, ready["linked"])
        self.trouble, self.locked_out = None, False
        if self._before is not None:
            before, self._before = self._before, None
            self.handed_over = before.gap()
            log.info("no clock drove the wheel for %.1f ms", self.handed_over["gap_ms"])
            await before.gone()
        self._drove = True
        self._running.set()
        self.on_start()
        if self._died is not None:
            log.warning("a new clock runs after %.0f ms", 1e3 * (time.monotonic() - self._died))
            self._died = None

    def _was_healthy(self, ran: float) -> bool:
        return self._drove

    def _note(self, text: str) -> None:
        log.warning("%s", text)
        self._resources.events.note(Kind.CLOCK, text)

    def _failed(self, error: Exception | None, pause: float) -> None:
        if self._drove:
            self._died = time.monotonic()
            self._note(f"the clock (pid {self.pid}) died; starting another")
            return
        serves = self._watcher is not None
        if isinstance(error, DamagedMemory) and serves:
            self._on_failure(str(error))
        if isinstance(error, DamagedMemory) or (isinstance(error, ClockRefused) and not serves):
            raise error  # the next one would fail, too
        self.trouble = str(error) or repr(error)
        log.warning("a clock (pid %s) did not start: %r", self.pid, error)
        if serves:  # the cause may be temporary: timers wait, none is lost
            log.error("no clock is running: %s; the next try is in %.2f s", self.trouble, pause)
        elif self.restarts >= START_TRIES:
            raise WheelError(
                f"{START_TRIES} clocks did not start, one after another: {self.trouble}"
            )

    # -- orders ---------------------------------------------------------------------------------

    async def ask(
        self, op: Order, answer: Notice, key: int, fields: Callable[[], Message]
    ) -> Message:
        """Send an order, with the fields that it has then, until a clock has answered it.
        `ClockGone`: the daemon stops."""
        while True:
            await self._running.wait()
            if self._stopping:
                raise ClockGone("the daemon stops")
            order = fields()
            answered: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
            self._answers[answer, key].append(answered)
            self.send(op, **order)
            with contextlib.suppress(ClockGone):
                return await answered

    async def attach(self, row: int, worker: Callable[[], Message]) -> None:
        answer = await self.ask(Order.ATTACH, Notice.ATTACHED, row, worker)
        if answer["error"]:
            raise WheelError(f"the clock cannot serve this worker: {answer['error']}")

    async def reap(self, row: int, leave: int) -> bool:
        order: Message = {"row": row, "leave": leave}
        answer = await self.ask(Order.DETACH, Notice.REAPED, row, lambda: order)
        return bool(answer["kept"])

    async def advance(self, to_ns: int) -> None:
        """Move a virtual clock; returns when all timers that fell due have been delivered."""
        await self.ask(Order.ADVANCE, Notice.ADVANCED, to_ns, lambda: {"to": to_ns})

    # -- stop -----------------------------------------------------------------------------------

    async def stop(self, for_good: bool = True) -> None:
        """Stop the clock. With `for_good` it tells the workers that the daemon has stopped.
        Otherwise it ends as if killed, and workers and the next daemon continue with the memory."""
        await self._watch_no_more()
        if self._before is not None:
            await self._before.gone()
        if self._child is not None and self._drove:
            self.patience = STOP_SECONDS
            self.send(Order.STOP, keep=not for_good)
            await self._child.end(STOP_SECONDS)
        await self._end_keeping()
        if for_good and not self.locked_out and self._resources.damage() is None:
            # A killed clock could not do so.
            _native.set_daemon_state(self._resources.memories["wheel"], STOPPING)
        self._close_bells()

    async def leave_running(self) -> tuple[int, int] | None:
        """Release the clock, which drives the wheel until its channel closes; returns its process
        id and a descriptor of the channel, or None if none runs."""
        await self._watch_no_more()
        self._close_bells()
        if self._child is None or not self._child.connected:
            await self._end_keeping()
            return None
        return self._child.pid, self._child.release()

    async def _watch_no_more(self) -> None:
        self._stopping = True
        self._running.set()  # wakes those that wait to send an order
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)

    # -- progress -------------------------------------------------------------------------------

    def look_soon(self) -> None:
        self._look.set()

    def on_alarm(self) -> None:
        """Wake the clock through its socket, which only it can read, at most every NUDGE_SECONDS: a
        worker rang but the clock still sleeps, because another process may have read that byte."""
        if (now := time.monotonic()) >= self._next_nudge:
            self._next_nudge = now + NUDGE_SECONDS
            self.send(Order.LOOK)
        self.look_soon()

    def _should_move(self) -> bool:
        """Whether the clock is awake, overdue, or was rung, and so has to make progress."""
        header = self._resources.wheel.header
        sleep_until, tick = int(header["sleep_until"]), int(header["tick_ns"])  # its end, too
        overdue = not header["virtual_clock"] and sleep_until + tick <= _native.read_clock()
        unread = fcntl.ioctl(self._bell, termios.FIONREAD, bytes(4))  # how many bytes
        return sleep_until == _AWAKE or overdue or any(unread)

    def _seconds_to_next_look(self) -> float:
        often = self._config.hang_after_s / 4
        if self._should_move():
            return often
        seldom = EVICT_LOOK_SECONDS if self._config.evict_after else IDLE_LOOK_SECONDS
        if self._resources.wheel.header["virtual_clock"]:
            return seldom
        rest = (int(self._resources.wheel.header["sleep_until"]) - _native.read_clock()) / 1e9
        return min(max(rest + often, often), seldom)

    async def _watch(self) -> None:
        """Watch the clock's progress for as long as the daemon lives, whatever goes wrong."""
        while not self._stopping:
            try:
                await self._look_on()
                return
            except Exception:
                log.exception("a check of the clock failed; it will be repeated")
                await asyncio.sleep(self._config.hang_after_s / 4)

    async def _look_on(self) -> None:
        """Watch it often while it works and rarely while it sleeps; returns when there is no clock
        any more.

        Only time in which this process itself ran counts: if both were stopped, the clock gets its
        chance first.
        """
        often = self._config.hang_after_s / 4
        last, stuck = None, 0.0
        while not self._stopping:  # before Python 3.12 wait_for can lose a cancellation
            began = time.monotonic()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._look.wait(), self._seconds_to_next_look())
                await asyncio.sleep(often / 4)
            self._look.clear()
            if (damage := self._resources.damage()) is not None:
                self._on_failure(damage)  # reading it would end this process (SIGBUS)
                return
            self._resources.mend()
            if self._resources.lost_slots:
                self.kill()  # its copies no longer hold; the next clock reads them
            self.on_look()
            header = self._resources.wheel.header
            now = (int(header["passes"]), int(header["sleep_seq"]), self.pid)
            if now != last or not self._should_move() or not self._running.is_set():
                last, stuck = now, 0.0
                continue
            stuck += min(time.monotonic() - began, 2 * often)
            if stuck >= self._config.hang_after_s:
                self._note(f"the clock (pid {self.pid}) hung for {stuck:.1f} s: killed")
                self.kill()
                stuck = 0.0
