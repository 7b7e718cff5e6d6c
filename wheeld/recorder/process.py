"""The recorder process: moves the clock's records from the trace ring into Parquet files.

It is started by the supervisor (`python -m wheeld.recorder.process <fd>`). One thread moves records
into a spool, often enough that the ring does not fill, and sleeps while there are none; another
converts full spools to Parquet. It may be killed at any instruction: the next recorder continues,
and no record is lost or duplicated. The clock never waits for it.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from wheeld.processes import child_main as child
from wheeld.processes.identity import stat_fields
from wheeld.processes.messages import Notice, Order
from wheeld.recorder.bell import Bell
from wheeld.recorder.converter import MOST_WAITING, Converter, Load
from wheeld.recorder.counters import Counters
from wheeld.recorder.facts import Facts, Origin
from wheeld.recorder.parquet import remove_fresh
from wheeld.recorder.ring_reader import RingReader
from wheeld.recorder.spool import (
    COUNTERS,
    FACTS,
    RECORDS,
    SpoolName,
    read_facts,
    remove_orphans,
    spools,
)
from wheeld.resources import ownership
from wheeld.resources.remains import is_locked
from wheeld.resources.trace_directory import SPOOL_FOLDER, make_again
from wheeld_core import _native, runtime, segments
from wheeld_core.control import Message
from wheeld_core.views import RegistryView

LEAST_PAUSE, LONGEST_PAUSE = 0.010, 0.250
"""Seconds between two polls of the ring: while many records come, and while none do."""
FASTEST: Final = 8_000_000
"""No clock exceeds this many records per second; a ring must not fill between two polls."""
NICE: Final = 5
"""The nice value: a lower priority than the clock and the workers have. It is the same for both
threads, because one that is not scheduled while it holds the interpreter would block the other."""
SWITCH_SECONDS: Final = 0.001
"""Seconds that the converter may hold the interpreter while the ring waits."""
LOCK_SECONDS: Final = 10.0
STOP_TRIES: Final = 20
_STOP_PAUSE = 0.25
_PR_SET_PDEATHSIG = 1


class RecorderProcess:
    """Maps the segments, polls the ring, serves the supervisor's messages."""

    def __init__(self, channel: child.SupervisorChannel) -> None:
        self._channel, self._sending = channel, threading.Lock()
        hello = channel.hello()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        child.check_supervisor(hello["supervisor"])
        _lower(NICE)
        sys.setswitchinterval(SWITCH_SECONDS)
        self._lock = child.lock(Path(hello["lock"]), LOCK_SECONDS, "recorder")
        self._trace = Path(hello["trace"])
        self._every = hello["every_ns"] / 1e9
        self._memories = {
            kind: segments.attach(name, segments.KINDS[kind], writable=kind == "trace")
            for kind, name in hello["segments"].items()
        }
        self._registry = RegistryView(self._memories["registry"])
        self._seen = np.zeros(len(self._registry.rows), np.uint64)
        self._troubles: dict[str, str | None] = {}
        self._retry, self._pause = 0.0, LEAST_PAUSE
        self._load = Load()
        origin = Origin(hello["host"], hello["daemon"], hello["run"])
        facts = Facts(origin, hello["segments"]["trace"])
        self._converter = Converter(
            self._trace, hello["keep_ns"], hello["most_bytes"], self._written,
            self._converter_trouble, self._warn, self._load,
        )  # fmt: skip
        self._intake = RingReader(
            self._memories["trace"], self._trace, facts, hello["virtual"],
            self._converter.add, self._warn,
        )  # fmt: skip
        self._counters = Counters(
            self._memories["wheel"], self._memories["trace"], self._memories["pools"],
            self._memories["registry"], self._trace, facts, self._converter.add,
            partial(_clock_pid, Path(hello["lock"]).with_name(runtime.DAEMON_FILE)),
        )  # fmt: skip
        while (message := channel.receive()) is not None and message["op"] == Order.WORKER:
            self._intake.learn(*message["worker"])  # those who are there already
        self._bell = Bell(self._memories["trace"], self._intake.view.head, channel.fileno())
        room = self._intake.view.size / FASTEST
        self._longest = min(max(room, LEAST_PAUSE), LONGEST_PAUSE)

    # -- the loop -------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve until told to stop, or until the supervisor is gone."""
        resumed = False
        self._converter.start()
        self._send({"op": Notice.READY})
        while True:
            if not resumed:
                resumed = self._try(self._resume)
            moved, began = 0, time.thread_time()
            view = self._intake.view
            # Before a spool can be full, as the converter checks the load.
            self._load.measure(view.waiting, sum(view.lost().values()))
            tail = view.head if self._full() else view.tail
            # New workers must be known before the records of their timers are read.
            stop = self._serve()
            if stop is not None:
                if stop:
                    self._stop(resumed)
                return
            if resumed and time.monotonic() >= self._retry:
                before = view.head
                self._try(partial(self._round, tail))
                moved = view.head - before
            self._wait(moved, time.thread_time() - began)

    def _round(self, tail: int) -> None:
        self._look_at_workers()
        self._intake.take(tail)
        if self._intake.age() >= self._every:
            self._intake.close()
        self._counters.keep()
        if self._counters.age() >= self._every:
            self._counters.close()

    def _full(self) -> bool:
        """The trace has gaps already, and the converter lags behind: leave records in the ring, and
        write no more spools."""
        return self._load.lossy and self._converter.waiting > MOST_WAITING

    def _resume(self) -> None:
        remove_fresh(make_again(self._trace), self._intake.origin.run)
        self._look_at_workers()
        self._intake.resume()
        self._counters.resume()
        for path in abandoned(self._trace / SPOOL_FOLDER, self._intake.origin):
            self._converter.add(path)

    def _wait(self, moved: int, worked: float) -> None:
        """Wait until the next poll: briefly after many records, longer after none; once that was
        for the longest time, until there is one."""
        if not moved and self._pause == self._longest and self._may_sleep():
            self._bell.sleep(self._intake.view.head, self._until_due())
            self._counters.wake()
            self._pause = LEAST_PAUSE
            return
        if moved * 16 > self._intake.view.size:
            self._pause = LEAST_PAUSE
        elif moved:
            self._pause = max(LEAST_PAUSE, self._pause / 2)
        else:
            self._pause = min(self._longest, self._pause * 2)
        pause = min(self._pause, max(self._counters.seconds_left(), LEAST_PAUSE))
        if moved * 4 > self._intake.view.size:
            pause = 0.0  # the ring was nearly full
        pause = max(pause, self._load.rest(worked))
        self._channel.ready(pause)

    def _may_sleep(self) -> bool:
        retries = self._troubles.get("intake") is not None
        return not (retries or self._load.busy or self._channel.ready())

    def _until_due(self) -> float | None:
        """Seconds until a spool is complete, or a row of counters is due; None: never."""
        due = [self._every - kept.age() for kept in (self._intake, self._counters) if kept.age()]
        if not self._counters.still:
            due.append(self._counters.seconds_left())
        return max(min(due), LEAST_PAUSE) if due else None

    def _try(self, work: Callable[[], None]) -> bool:
        """Run `work`; a system error is reported once, and the work retried later. False: it
        failed."""
        try:
            work()
        except OSError as error:
            self._retry = time.monotonic() + LONGEST_PAUSE
            self._report(f"{error.filename or self._trace}: {error.strerror or error}", "intake")
            return False
        self._report(None, "intake")
        return True

    def _look_at_workers(self) -> None:
        """Read the names of new workers from the worker table, in case no message came."""
        rows = self._registry.rows
        incarnations = rows["incarnation"].astype(np.uint64)
        for row in np.flatnonzero(incarnations != self._seen).tolist():
            name = bytes(rows["name"][row]).decode(errors="replace")
            if name:
                self._intake.learn(row, int(incarnations[row]) & 0xFFFFFFFF, name)
        self._seen = incarnations

    # -- the end --------------------------------------------------------------------------------

    def _stop(self, resumed: bool) -> None:
        """The clock has ended: convert everything that it wrote to Parquet, and report that it is
        done."""
        for _ in range(STOP_TRIES):
            resumed = resumed or self._try(self._resume)
            if resumed and self._try(self._finish_intake):
                break
            time.sleep(_STOP_PAUSE)
        self._converter.end()
        self._await_converter()
        self._converter.finish()
        left = self._intake.view.waiting + self._converter.waiting
        if not left and self._try(self._write_last):
            left = self._converter.waiting
        self._send({"op": Notice.STOPPED, "left": left})

    def _finish_intake(self) -> None:
        self._round(self._intake.view.tail)
        self._intake.close()
        self._intake.tell_lost(self._base_now())
        self._counters.close()

    def _write_last(self) -> None:
        """Write the last row of counters, which says that all events before it have been
        written."""
        self._counters.keep_last(self._intake.view.head)
        self._converter.finish()

    def _await_converter(self) -> None:
        """Wait for the converter's thread, at normal priority: a caller may be waiting for the
        daemon's end."""
        if self._converter.native_id is not None:
            _raise(self._converter.native_id)
        self._converter.join()

    def _base_now(self) -> int:
        return self._counters.now_ns() if self._counters.virtual else _native.read_clock()

    # -- messages -------------------------------------------------------------------------------

    def _serve(self) -> bool | None:
        """Handle every message that has arrived. True: stop; False: the supervisor is gone."""
        while self._channel.ready():
            message = self._channel.receive()
            if message is None:
                return False
            if message["op"] == Order.STOP:
                return True
            if message["op"] == Order.WORKER:
                self._intake.learn(*message["worker"])
        return None

    def _written(self, path: Path, rows: int) -> None:
        self._send({"op": Notice.FILE, "path": str(path), "rows": rows})

    def _warn(self, text: str) -> None:
        self._send({"op": Notice.WARNING, "text": text})

    def _converter_trouble(self, text: str | None) -> None:
        self._report(text, "converter")

    def _report(self, text: str | None, who: str) -> None:
        if self._troubles.get(who) != text:
            self._troubles[who] = text
            self._send({"op": Notice.TROUBLE, "who": who, "text": text})

    def _send(self, message: Message) -> None:
        with self._sending, contextlib.suppress(OSError):  # gone: the loop notices
            self._channel.send(message)


def _clock_pid(daemon: Path) -> int:
    """The clock that the daemon's file names; 0: it is not of our supervisor."""
    with contextlib.suppress(OSError, ValueError, KeyError, IndexError):
        pid = int(json.loads(daemon.read_text("utf-8"))["clock_pid"])
        if int(stat_fields(Path(f"/proc/{pid}"))[1]) == os.getppid():
            return pid
    return 0


def abandoned(folder: Path, ours: Origin) -> list[Path]:
    """Spools of other runs on this host that no process appends to any more, since their shared
    memory is gone."""
    found = []
    for suffix in (FACTS, RECORDS, COUNTERS):
        for path in spools(folder, suffix):
            name = SpoolName.parse(path.name)
            if name is None or name.run == ours.run:
                continue
            with contextlib.suppress(ValueError, OSError):
                facts = read_facts(path)
                gone = not Path(segments.SHM_DIRECTORY, facts.segment).exists()
                its = facts.origin
                if its.daemon != ours.daemon:  # its /dev/shm may be another one
                    gone &= not is_locked(ownership.of_trace(folder, its.daemon, its.host))
                if gone and its.host == ours.host:
                    remove_fresh(folder, name.run)
                    remove_orphans(folder, name.run)
                    found += [path] if suffix != FACTS else []
    return found


def _lower(nice: int) -> None:
    """Lower the priority of this process, which has only one thread so far; never raises it."""
    with contextlib.suppress(OSError):
        if os.getpriority(os.PRIO_PROCESS, 0) < nice:
            os.setpriority(os.PRIO_PROCESS, 0, nice)


def _raise(thread: int) -> None:
    for each in (thread, threading.get_native_id()):
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, each, 0)


class _NoPandas:
    """Keeps pyarrow from loading pandas, which is slow, just to check for pandas types."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("the recorder must not load pandas", name=name)


def _die(hook: threading.ExceptHookArgs) -> None:
    """End the process when either thread fails: the next recorder starts with both."""
    try:
        sys.excepthook(hook.exc_type, hook.exc_value or hook.exc_type(), hook.exc_traceback)
        sys.stderr.flush()
    finally:  # whatever became of the message
        os._exit(1)


def main() -> None:
    sys.meta_path.insert(0, _NoPandas())
    threading.excepthook = _die
    child.run("recorder", lambda channel: RecorderProcess(channel).run())


if __name__ == "__main__":
    main()
