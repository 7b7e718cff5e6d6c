"""The parts of a daemon, and whether it is healthy."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from wheeld.clock.guard import ClockGuard
from wheeld.config.settings import Config
from wheeld.metrics.guard import ExporterGuard
from wheeld.recorder.guard import RecorderGuard
from wheeld.resources import handover
from wheeld.resources.owned import Resources
from wheeld.supervisor.snapshots import Snapshots
from wheeld.supervisor.workers.workers import Workers
from wheeld_core import _native
from wheeld_core.views import WheelView

_AWAKE: Final = -(2**63)


class Parts:
    """The parts that the supervisor starts, serves and ends, each with references to those that it
    needs.

    Parameters
    ----------
    config : Config
        What the daemon is started with.
    fresh : bool
        Discard what a killed daemon of that name left, instead of taking it over.
    before : handover.Handover, optional
        What this process handed over before it executed the program anew.
    """

    def __init__(self, config: Config, fresh: bool, before: handover.Handover | None) -> None:
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
        self.exporter = ExporterGuard(self.resources)
        self.snapshots = Snapshots(self.resources, self.workers, fresh)
        self.stopping = asyncio.Event()
        self.failed: str | None = None
        self.served = False

    @property
    def config(self) -> Config:
        return self.resources.config

    def fail(self, why: str) -> None:
        self.failed = self.failed or why
        self.stopping.set()

    def clock_is_well(self, within: float) -> bool:
        """Is there a clock, and has it made progress within so many seconds, if it had any to
        make?"""
        whole = self.clock.runs and self.resources.damage() is None
        return whole and _makes_progress(self.resources.wheel, within)


def _makes_progress(wheel: WheelView, within: float) -> bool:
    """Is its last pass recent, or its sleep not long overdue?

    Reads two words; a sleeping clock is not woken.
    """
    now = _native.read_clock()
    sleep_until = int(wheel.header["sleep_until"])
    if sleep_until == _AWAKE:
        return now - int(wheel.header["heartbeat"]) < within * 1e9
    if wheel.header["virtual_clock"]:
        return True
    wakes_by = sleep_until + int(wheel.header["tick_ns"])  # a deadline may wait for its tick's end
    return now - wakes_by < within * 1e9
