"""Lane: one worker of the source on a host; the holder of its lock is that worker.

A lane's timers outlive the process that scheduled them: it connects with `on_death="keep"`, and the
next holder of the lane connects under the same name and gets its slots and its expirations. A
writing task takes any free lane; the reading query takes each lane that holds events or timers.

Invariants
 1. A lane writes the events that it receives to its spool before it acknowledges them to the wheel.
 Records in the spool that were not acknowledged come again, first and in the same order, and are
 skipped. 2. A lane first completes the unfinished work of its last holder (stage.py). 3.
 `lane.json` has the number of timers left when the lane was last closed: `left`, null while it is
 open. So a lane notices, and reports, timers that the daemon dropped.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wheeld_client import Observer, Timers, WheelError, connect
from wheeld_pipeline.datasource.journal import Journal, read_json, take_lock
from wheeld_pipeline.datasource.options import Options
from wheeld_pipeline.datasource.rows import PARKED_NS
from wheeld_pipeline.datasource.spool import Spool, record_dtype
from wheeld_pipeline.datasource.stage import StagedPartition
from wheeld_pipeline.errors import PipelineError
from wheeld_pipeline.files import write_json

_MOST_AT_ONCE: Final = 1 << 24
"""The most expirations that one drain takes, since more may keep arriving."""
_REFILL_SECONDS: Final = 0.1
"""Seconds for the clock to refill a ring that was emptied."""


class Lane:
    """An open lane: its lock, its worker, its spool. A context manager that closes it."""

    def __init__(self, journal: Journal, number: int, options: Options, lock: int) -> None:
        self.journal, self.number, self._options = journal, number, options
        self.directory = journal.lane_directory(number)
        self.spool = Spool(self.directory)
        self._lock = lock
        self._closed = False
        self._seen = False
        """Whether the first events were compared with the spool's last ones."""
        try:
            self.timers = self._connect()
            try:
                self._begin()
            except BaseException:
                self.timers.close()
                raise
        except BaseException:
            os.close(lock)
            raise

    # -- opening ----------------------------------------------------------------------------------

    @classmethod
    def open(cls, journal: Journal, number: int, options: Options, seconds: float) -> Lane | None:
        """Open that lane as soon as it is free; None: it was not free in that time."""
        directory = journal.lane_directory(number)
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not take_lock(lock, seconds):
            os.close(lock)
            return None
        return cls(journal, number, options, lock)

    @classmethod
    def any(cls, journal: Journal, options: Options) -> Lane:
        """Open a free lane; a new one if none is free.

        Raises
        ------
        PipelineError
            All were taken for `lane_timeout` seconds.
        """
        give_up = time.monotonic() + options.lane_timeout
        while True:
            known = journal.lane_numbers()
            fresh = next(n for n in range(len(known) + 1) if n not in known)
            for number in [*known, fresh][: options.lanes]:
                lane = cls.open(journal, number, options, 0)
                if lane is not None:
                    return lane
            if time.monotonic() >= give_up:
                raise PipelineError(
                    f"host {journal.host}: all {options.lanes} lanes of {journal.directory} were "
                    f"taken for {options.lane_timeout:g} s: raise the option lanes or lane_timeout"
                )
            time.sleep(0.01)

    def _connect(self) -> Timers:
        """The lane's worker. The daemon may not have noticed yet that the last holder died."""
        name = self.journal.worker_name(self._options.worker, self.number)
        give_up = time.monotonic() + max(self._options.lane_timeout, 1.0)
        while True:
            try:
                return connect(
                    self._options.name,
                    worker=name,
                    on_death="keep",
                    runtime_dir=self._options.runtime_dir,
                )
            except ValueError as error:  # the name is in use
                if time.monotonic() >= give_up:
                    raise PipelineError(f"host {self.journal.host}: {error}") from error
                time.sleep(0.02)
            except (WheelError, OSError) as error:
                raise PipelineError(f"host {self.journal.host}: {error}") from error

    def _begin(self) -> None:
        self.journal.bind(self.timers.directory)
        state = read_json(self.directory / "lane.json")
        same = state is not None and state["wheel"] == self.timers.wheel_token
        adopted = same and self.timers.adopted
        if state is not None and not adopted and state["left"] != 0:
            self._lost(state, same)
        self.spool.mend()
        stage = StagedPartition.current(self.directory)
        if stage is not None and adopted:
            self.settle(stage)
        elif stage is not None:
            stage.mend()
        self._write_state(None)

    def settle(self, stage: StagedPartition) -> None:
        """Complete unfinished work on a partition that this lane schedules."""
        stage.settle(self.timers, self._parked)

    def _parked(self) -> npt.NDArray[np.uint64]:
        """The ids of this lane's timers that are not moved to their deadlines yet."""
        with Observer(self._options.name, self._options.runtime_dir) as observer:
            found = observer.pending(payloads=False)
        own = [row for row, name in found.workers.items() if name == self.timers.worker]
        parked = found.timers["deadline"] == PARKED_NS
        ids: npt.NDArray[np.uint64] = found.timers["timer_id"][
            parked & np.isin(found.timers["owner"], own)
        ]
        return ids

    def _lost(self, state: dict[str, Any], same: bool) -> None:
        if not self._options.fail_on_data_loss:
            return
        count = "an unknown number of" if state["left"] is None else f"up to {state['left']}"
        why = (
            f"the daemon kept them for {state['keep_for']:g} s only (wheeld start --keep-for)"
            if same
            else "the daemon has another wheel than the journal: it was started afresh, or the "
            "journal is another daemon's"
        )
        raise PipelineError(
            f"host {self.journal.host}: {count} timers of {self.directory} are lost: {why}; the "
            "option fail_on_data_loss=false continues without them"
        )

    def _write_state(self, left: int | None) -> None:
        facts = {"wheel": self.timers.wheel_token, "keep_for": self.timers.keep_for, "left": left}
        write_json(self.directory / "lane.json", facts)

    # -- receiving --------------------------------------------------------------------------------

    def drain(self, wait: bool = False) -> int:
        """Receive expirations; returns how many records went into the spool.

        With `wait` it also receives expirations that wait behind the full ring, for which the clock
        needs a moment.
        """
        taken = 0
        while taken < _MOST_AT_ONCE:
            patience = _REFILL_SECONDS if wait and self.timers.backlogged else 0.0
            events = self.timers.poll(patience, hold=True)
            if not len(events):
                break
            fresh = events if self._seen else self._unknown(events)
            if len(fresh):
                self.spool.append(self._records(fresh))
            self._seen = True
            self.timers.acknowledge()
            taken += len(fresh)
        self._seen = True
        return taken

    def _unknown(self, events: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
        known = self.spool.last_ids(len(events))
        found = np.flatnonzero(known == events["timer_id"][0].astype("i8"))
        return events[len(known) - int(found[-1]) :] if len(found) else events

    def _records(self, events: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
        names = events.dtype.names or ()
        room = events.dtype["payload"].itemsize if "payload" in names else 0
        records = np.empty(len(events), record_dtype(room))
        for field in ("timer_id", "cookie"):
            records[field] = events[field].astype("i8")
        for field in ("deadline", "fired"):
            records[field] = self.timers.dates(events[field]).astype("M8[us]").astype("i8")
        records["lateness_ns"] = events["fired"] - events["deadline"]
        for field in ("missed", "payload_size", "payload")[: 3 if room else 2]:
            records[field] = events[field]
        return records

    # -- closing ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the lane, leaving its pending timers to the next holder. May be called twice."""
        if self._closed:
            return
        self._closed = True
        try:
            left = self._leave()
            if left is not None:
                self._write_state(left)
        finally:
            os.close(self._lock)

    def _leave(self) -> int | None:
        """Close the worker; returns how many of its timers are still pending, or None if that is
        unknown.

        A timer that is not armed at the first look has fired before. Once the daemon has swept the
        worker, its ring has all of these. A timer that fires in between counts twice.
        """
        try:
            pending = self.timers.pending
            self.timers.close()
            with Observer(self._options.name, self._options.runtime_dir) as observer:
                unread = observer.unread(self.timers.worker)
        except (WheelError, OSError):
            self.timers.close()
            return None
        return None if unread is None else pending + unread

    def __enter__(self) -> Lane:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def lane_state(directory: Path) -> dict[str, Any] | None:
    return read_json(directory / "lane.json")
