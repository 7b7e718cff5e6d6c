"""What the supervisor knows about its daemon, read from the shared memory's views."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from wheeld_core import _native
from wheeld_core.views import WheelView

if TYPE_CHECKING:
    from wheeld.supervisor import Supervisor

_AWAKE = -(2**63)


def clock_is_well(wheel: WheelView, within: float) -> bool:
    """Does the clock do its work: is its last pass recent, or its sleep not over for long?

    Reads two words; a clock that sleeps is not woken for it.
    """
    now = _native.read_clock()
    sleep_until = int(wheel.header["sleep_until"])
    if sleep_until == _AWAKE:
        return now - int(wheel.header["heartbeat"]) < within * 1e9
    if wheel.header["virtual_clock"]:
        return True
    return now - sleep_until < within * 1e9


def collect(supervisor: Supervisor) -> dict[str, Any]:
    """The status of a daemon, as JSON-able values."""
    resources, config = supervisor.resources, supervisor.config
    wheel = resources.wheel
    armed = resources.slots.armed()
    owners = resources.slots.owner_rows()[armed]
    return {
        "name": config.name,
        "pid": os.getpid(),
        "clock_pid": supervisor.clock.pid,
        "uptime_s": round(time.time() - supervisor.started, 3),
        "directory": str(resources.directory),
        "clock_ok": clock_is_well(wheel, 2.0),
        "capacity": config.slots,
        "pending": len(armed),
        "tick_ns": config.tick_ns,
        "wheel_size": 1 << config.wheel_bits,
        "payload_bytes": config.payload_room,
        "virtual_now_ns": int(wheel.header["virtual_now"]) if config.virtual_clock else None,
        "shared_bytes": resources.shared_bytes(),
        "segments": dict(resources.names),
        "counters": wheel.counters(),
        "clock_restarts": supervisor.clock.restarts,
        "taken_over": resources.taken_over,
        "workers": [
            {
                **worker,
                "pending": int((owners == worker["row"]).sum()),
                "fired": int(wheel.lines["fired"][worker["row"]]),
                "backlog": bool(wheel.lines["backlog"][worker["row"]]),
                "offences": int(wheel.lines["offences"][worker["row"]]),
            }
            for worker in supervisor.workers.listed()
        ],
    }
