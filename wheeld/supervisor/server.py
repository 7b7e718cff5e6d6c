"""The supervisor starts and watches a daemon's processes, and answers its requests. No hot path.

Everything runs on one asyncio loop. It may be killed at any moment: its clock ends with it, workers
keep using the shared memory, and the next daemon of that name takes over (takeover.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import functools
import logging
import os
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from wheeld.clock.guard import ClockGuard
from wheeld.config.settings import Config, reloaded
from wheeld.metrics.guard import ExporterGuard
from wheeld.metrics.series import Departed
from wheeld.processes import activation, descriptors, identity, notify, signals
from wheeld.processes.callers import OneForAll
from wheeld.processes.messages import Order
from wheeld.recorder.guard import RecorderGuard
from wheeld.resources import handover, takeover
from wheeld.resources.owned import Resources
from wheeld.supervisor import logs, status
from wheeld.supervisor.control_socket import ControlSocket
from wheeld.supervisor.draining import drain
from wheeld.supervisor.idle import Idleness
from wheeld.supervisor.snapshots import Snapshots
from wheeld.supervisor.workers import Workers, evict, evict_offenders
from wheeld.tables.registry import Tenant
from wheeld_core import _native, runtime
from wheeld_core.control.messages import Leaving, Message, Request
from wheeld_core.errors import WheelError
from wheeld_core.presence import RUNNING

log = logging.getLogger("wheeld")

STOP_SECONDS, TRACE_STOP_SECONDS = 15.0, 600.0
"""Seconds that a client that asked for a stop should wait for it: a trace is completed first."""
SETTLE_SECONDS = 0.5
"""How long another program may take to remove all files of the runtime directory."""


class StopMode(enum.Enum):
    """The parts of a daemon that remain after its end."""

    FINAL = enum.auto()
    """Nothing: pending timers go into the last snapshot, with --state-dir."""
    KEEP = enum.auto()
    """The memory: workers keep running, and the next start takes it over."""
    RESTART = enum.auto()
    """A restart in place, with the same layout: even the clock keeps running."""
    RESTART_ANEW = enum.auto()
    """A restart in place, with another layout: a stop for the workers."""


class Supervisor:
    """One daemon, from start to stop.

    It stops when `parent_pid` dies (embedded daemons), a process of the identity `parent_known`
    (identity.py). `remove_base` also removes the directory that holds the runtime directory, if it
    is empty then; `fresh` discards what a killed daemon of that name left, instead of taking it
    over; `read_config` reads the configuration again, for SIGHUP; `before` comes from the previous
    incarnation of this process. After `run`, `successor` is the program to execute, if any, with
    signals blocked.
    """

    def __init__(
        self,
        config: Config,
        parent_pid: int | None = None,
        remove_base: bool = False,
        fresh: bool = False,
        read_config: Callable[[], Config] | None = None,
        before: handover.Handover | None = None,
        parent_known: int = identity.UNKNOWN,
    ) -> None:
        descriptors.claim(config.max_workers)
        # A signal that comes while the segments are made is blocked until run() can clean up.
        signals.hold()
        fresh = fresh and before is None
        self.started = time.time()
        self.restarts = before.number if before is not None else 0
        self.resources = Resources(config, fresh, before)
        self.workers = Workers(self.resources)
        self.clock = ClockGuard(
            self.resources,
            self.workers.attachments,
            self.workers.damaged,
            self.fail,
            handover.Predecessor(before) if before is not None else None,
        )
        self.workers.clock = self.clock
        self.recorder = RecorderGuard(self.resources)
        self.workers.on_arrival = self.recorder.arrived
        self.departed = Departed()
        self.workers.on_departure = self._count
        self.exporter = ExporterGuard(self.resources)
        self.snapshots = Snapshots(self.resources, self.workers, fresh)
        self.stopping = asyncio.Event()
        self.failed: str | None = None
        self.served = False
        self._read_config = read_config or (lambda: self.config)
        self._before = before
        self.clock.on_look = self._look
        self._parent_pid, self._parent_known = parent_pid, parent_known
        self._parent_pidfd: int | None = None
        self._remove_base = remove_base
        self._mode = StopMode.FINAL
        self.successor: handover.Handover | None = None
        self._facts_are_old = False
        self._server: asyncio.Server | None = None
        self._advancing = asyncio.Lock()
        self.control = ControlSocket(self.resources, self.workers, self._answer, self.stopping)
        self._status = OneForAll(self._find_status)

    @property
    def config(self) -> Config:
        return self.resources.config

    def fail(self, why: str) -> None:
        self.failed = self.failed or why
        self.stopping.set()

    async def run(self) -> None:
        """Serve until a signal, `wheeld stop`, or the parent's death; then clean up. `WheelError`:
        it did not end by request; the message says why. Memory that another daemon can take over
        stays then."""
        keep = functools.partial(self.stop, StopMode.KEEP)
        signals.handle(asyncio.get_running_loop(), self.stopping.set, keep, self._reload)
        tasks: list[asyncio.Task[None]] = []
        try:
            self._watch_parent()
            if self.resources.taken_over:
                self.workers.adopt()
            else:
                self.snapshots.restore()
            self.recorder.launch(self.workers.registry.tenants.values())
            first = not (self._before or self.resources.taken_over)  # else workers wait for it
            self.exporter.launch(awaited=first)
            await self.clock.start()
            self.workers.watch_adopted()
            await self._listen(self._before)
            await self.recorder.started()
            if first:
                await self.exporter.started()
            self.resources.open_socket()
            self.workers.look_for_goodbyes()
            self._write_facts()
            self.served = True
            self.clock.on_start = self._renew_facts
            notify.notify(f"READY=1\nMAINPID={os.getpid()}\nSTATUS=serving {self.config.name}")
            log.info(
                "%s %s in %s",
                "took over" if self.resources.taken_over else "serving",
                self.config.name,
                self.resources.directory,
            )
            tasks += [
                asyncio.create_task(notify.feed_watchdog(self.clock.is_well)),
                asyncio.create_task(self.snapshots.keep_writing()),
                asyncio.create_task(self._keep_place()),
            ]
            if self.resources.bells_removed:
                polling = self.workers.connections.poll_rings(
                    functools.partial(self.clock.send, Order.LOOK)
                )
                tasks.append(asyncio.create_task(polling))
            if (seconds := self.config.idle_exit_s) is not None:
                idle = Idleness(self.resources, self.workers, self.control)
                tasks.append(asyncio.create_task(idle.watch(seconds, self.stop)))
            await self.stopping.wait()
        except (OSError, WheelError) as error:  # such as a file in our way
            self.fail(str(error))
        except Exception as error:
            log.exception("the daemon ends with an internal error")
            self.fail(repr(error))
        finally:
            restarts = self._mode in (StopMode.RESTART, StopMode.RESTART_ANEW)
            now = f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}"
            notify.notify(now if restarts else "STOPPING=1")
            await self._end(tasks)
            if self.successor is not None:
                signals.hold()
        if self.failed:
            raise WheelError(self.failed)

    async def _listen(self, before: handover.Handover | None) -> None:
        """Serve the socket that was handed over, or a new one; note its file at once, before
        another file can take its name."""
        where = known = None
        if before is not None or self._server is None:  # it was not removed by anyone
            where = handover.activated(before, self.resources.directory)
        if where is None:
            where = handover.listening(before, self.resources.socket_path())
            if before is not None and "sock" in where:
                known = before.known_socket()
            else:
                self.resources.clear_socket()
        self._server = await self.control.listen(**where)
        self.resources.note(runtime.CONTROL_SOCKET, known)

    def _write_facts(self) -> None:
        self.resources.write_daemon_file(pid=os.getpid(), clock_pid=self.clock.pid)

    def _renew_facts(self) -> None:
        """Write daemon.json again; if there is no space now, a later check retries."""
        try:
            self._write_facts()
            self._facts_are_old = False
        except OSError as error:
            if not self._facts_are_old:
                log.warning("cannot update %s: %s", runtime.DAEMON_FILE, error)
            self._facts_are_old = True

    def _look(self) -> None:
        evict_offenders(self.workers, self.config.evict_after)
        if self._facts_are_old:
            self._renew_facts()

    def _reload(self) -> None:
        self.resources.config = reloaded(self.config, self._read_config)
        logs.set_level(self.config.log_level)
        self.clock.look_soon()  # the next check may be due earlier now

    def stop(self, mode: StopMode = StopMode.FINAL) -> None:
        """Make `run` return; the first call decides whether the memory stays."""
        if not self.stopping.is_set():
            self._mode = mode
            self.stopping.set()

    # -- the runtime directory ------------------------------------------------------------------

    async def _keep_place(self) -> None:
        """Check now and then whether the runtime directory leads to this daemon, and repair it if
        not."""
        said = ""
        while True:
            await asyncio.sleep(takeover.LOOK_SECONDS)
            try:
                if not self.resources.lost():
                    continue
                await asyncio.sleep(SETTLE_SECONDS)
                await self._mend_place(self.resources.lost())
                said = ""
            except (OSError, WheelError) as error:
                if said != (said := str(error)):
                    log.error(
                        "%s is not as it was: %s; trying again", self.resources.directory, said
                    )

    async def _mend_place(self, lost: set[str]) -> None:
        """Restore files that others have removed or replaced. If clock and workers have the old
        FIFOs open, the same happens as at a start over such a directory: the clock is replaced, and
        workers reconnect."""
        if not lost:
            return
        log.warning(
            "%s was changed by another process: %s made again",
            self.resources.directory,
            ", ".join(sorted(lost)),
        )
        self.resources.renew(lost)
        if any(name.endswith((".fifo", ".lock")) for name in lost):
            self.clock.renew_bell()
            self.control.drop_workers()
        if runtime.CONTROL_SOCKET in lost:
            before = self._server
            await self._listen(None)
            if before is not None:
                before.close()
            self.resources.open_socket()
        self._write_facts()

    # -- watching -------------------------------------------------------------------------------

    def _watch_parent(self) -> None:
        if self._parent_pid is None:
            return
        self._parent_pidfd = identity.open_process(self._parent_pid, self._parent_known, 0)
        if self._parent_pidfd is None:
            self.stopping.set()
            return
        asyncio.get_running_loop().add_reader(self._parent_pidfd, self.stopping.set)

    # -- the control socket ---------------------------------------------------------------------

    async def _answer(self, message: Message, tenant: Tenant | None) -> Mapping[str, Any] | None:
        op = message.get("op")
        if op == Request.BYE and tenant is not None:
            departure = self.workers.depart(tenant, "said good-bye")
            if departure is not None:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(asyncio.shield(departure), 2)
            return {"ok": True}
        if op == Request.ALARM:
            self.clock.on_alarm()
            return None
        if op == Request.STATUS:
            return {"ok": True, "status": await self._look_up_status()}
        if op == Request.ADDRESS:
            await self.workers.address(message.get("to"))
            return {"ok": True}
        if op == Request.EVICT:
            return await evict(self.workers, message)
        if op == Request.DRAIN:
            return drain(self.workers, message)
        if op == Request.EVENTS:
            return {"ok": True, **self.resources.events.as_dict()}
        if op == Request.ADVANCE:
            return {"ok": True, "now_ns": await self._advance(message)}
        if op == Request.STOP:
            return self._leave(StopMode.KEEP if message.get("keep") is True else StopMode.FINAL)
        if op == Request.RESTART:
            await self._mend_place(self.resources.lost())
            same = await handover.keeps_memory(self.config)
            return self._leave(StopMode.RESTART if same else StopMode.RESTART_ANEW)
        raise ValueError(f"unknown request {op!r}; allowed: {', '.join(Request)}")

    def _leave(self, mode: StopMode) -> Leaving:
        asyncio.get_running_loop().call_soon(self.stop, mode)
        return {
            "ok": True,
            "pid": os.getpid(),
            "patience_s": STOP_SECONDS if self.config.trace is None else TRACE_STOP_SECONDS,
            "wheel": self.resources.names["wheel"],
            "pending": self.resources.slots.pending(),
            "restarts": self.restarts,
            "keeps": mode in (StopMode.KEEP, StopMode.RESTART),
            "activated": activation.is_activated(),
        }

    async def _advance(self, message: Message) -> int:
        if not self.config.virtual_clock:
            raise ValueError("this daemon runs on the real clock; start it with --virtual-clock")
        step = message.get("ns")
        if type(step) is not int or step < 0:
            raise ValueError(f"advance by {step!r}: expected a number of ns, 0 or more")
        async with self._advancing:
            now = int(self.resources.wheel.header["virtual_now"])
            target = min(now + step, 2**63 - 1)
            await self.clock.advance(target)
        return target

    def _count(self, tenant: Tenant) -> None:
        """Add the counts of a leaving worker to the counts of its group and name."""
        with contextlib.suppress(WheelError, OSError):  # its segment is damaged
            self.departed.add(status.departed(self.resources, self.workers, tenant))

    def status(self) -> dict[str, Any]:
        if (damage := self.resources.damage()) is not None:
            raise WheelError(damage)  # reading it would end this process (SIGBUS)
        return status.collect(
            self.resources,
            self.workers,
            self.clock,
            started=self.started,
            restarts=self.restarts,
            trace=self.recorder.status(),
            exporter=self.exporter.status(),
            counted=self.departed,
        )

    async def _find_status(self) -> dict[str, Any]:
        return self.status()

    async def _look_up_status(self) -> dict[str, Any]:
        try:
            return await self._status.get()
        except WheelError:
            if (damage := self.resources.damage()) is not None:
                # Only then: to fail drops all connections, also those that wait for this answer.
                asyncio.get_running_loop().call_soon(self.fail, damage)
            raise

    # -- the end --------------------------------------------------------------------------------

    async def _end(self, tasks: list[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.successor = await self._leave_or_remove()
        if self._parent_pidfd is not None:
            os.close(self._parent_pidfd)
        if self._remove_base and self.successor is None:
            with contextlib.suppress(OSError):
                self.resources.directory.parent.rmdir()

    async def _leave_or_remove(self) -> handover.Handover | None:
        """Clean up; if one step fails, the others are still carried out. Returns the handover for
        the program that this process executes next, if any."""
        listener = -1
        if (server := self._server) is not None:
            if self._mode in (StopMode.RESTART, StopMode.RESTART_ANEW):
                listener = os.dup(server.sockets[0].fileno())
            server.close()
        await self._step(self.control.drop_connections())
        await self._step(self.workers.close())
        await self._step(self.exporter.stop())
        if listener >= 0:
            log.info("restarts in place")
        next_one = handover.Handover(os.getpid(), self.restarts + 1, listener=listener)
        if (
            self._mode is StopMode.RESTART
            and self._may_leave()
            and await self._step(self._hand(next_one))
        ):
            return next_one
        kept = await self._stop_clock()
        if self._mode is StopMode.RESTART_ANEW and not kept:
            next_one.ended_ns = time.monotonic_ns()
            self.resources.leave_locked(next_one, discard=True)
            return next_one
        if listener >= 0:
            os.close(listener)
        self.resources.close(discard=not (kept or self.clock.locked_out))
        return None

    def _may_leave(self) -> bool:
        return self.resources.damage() is None and (self.served or self.resources.taken_over)

    async def _hand(self, next_one: handover.Handover) -> None:
        await self.recorder.leave()
        if (clock := await self.clock.leave_running()) is not None:
            next_one.clock_pid, next_one.clock_channel = clock
        next_one.ended_ns = time.monotonic_ns()
        self.resources.leave_locked(next_one)

    async def _stop_clock(self) -> bool:
        """End the clock and the processes that depend on it; returns whether the memory stays."""
        wanted = self._mode in (StopMode.KEEP, StopMode.RESTART)
        sound = self.resources.damage() is None
        keep = (wanted or self.failed is not None) and self._may_leave()
        await self._step(self.clock.stop(for_good=not keep))
        await self._step(self.recorder.stop())
        if sound and not await self._step(self.snapshots.write_last()) and not keep:
            keep = True
            _native.set_daemon_state(self.resources.memories["wheel"], RUNNING)
        if keep and wanted:
            await self._step(self._say_that_it_stays())
        if keep and not self.clock.locked_out:
            log.log(
                logging.INFO if wanted and self.failed is None else logging.ERROR,
                "the memory stays, with %d timers: `wheeld start` continues with it",
                self.resources.slots.pending(),
            )
        return keep

    async def _say_that_it_stays(self) -> None:
        snapshot = self.config.state_dir is not None and self.failed is None
        self.resources.write_daemon_file(kept={"snapshot": snapshot})

    async def _step(self, step: Coroutine[Any, Any, None]) -> bool:
        """Run one step; False if it failed, which the daemon's exit code shows."""
        try:
            await step
        except Exception as error:
            if not isinstance(error, OSError | WheelError):
                log.exception("an internal error while the daemon was ending")
            self.fail(str(error) or repr(error))
            return False
        return True
