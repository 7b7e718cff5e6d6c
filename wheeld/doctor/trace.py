"""The checks of `wheeld doctor` on a daemon's trace: whether everything is recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from wheeld.doctor.machine import Finding, ok

FULL = 0.5
"""Share of the ring in which events wait for the recorder."""

Trace = Mapping[str, Any]


def recorder(trace: Trace) -> Finding:
    name = "recorder"
    if trace["recorder_pid"] is None:
        return Finding(
            name, "failure", f"none; {trace['restarts']} ended", "one that runs",
            "the daemon starts another by itself; see its messages for why they end",
        )  # fmt: skip
    found = f"pid {trace['recorder_pid']} writes to {trace['directory']}"
    if trace["trouble"]:
        return Finding(
            name, "failure", f"pid {trace['recorder_pid']} cannot write: {trace['trouble']}",
            "a writable directory with room",
            "make room, or restart with another --trace; in the meantime the clock keeps "
            "running, and counts events that do not fit into the ring",
        )  # fmt: skip
    if trace["restarts"]:
        return Finding(
            name, "note", f"{found}; replaced {trace['restarts']} times", "never replaced",
            "nothing is lost; see the daemon's messages for the reason",
        )  # fmt: skip
    return ok(name, found)


def completeness(trace: Trace) -> Finding:
    name, waits = "trace", f"{trace['behind']:,} of {trace['ring']:,} wait in the ring"
    if trace["lost"]:
        return Finding(
            name, "warning", f"{trace['lost']:,} events are missing, {waits}", "none missing",
            "the trace counts them, as rows `lost`; a larger --trace-ring, a faster disk, or a CPU "
            "for the recorder",
        )  # fmt: skip
    found = f"{trace['recorded']:,} events, none missing; {waits}"
    if trace["behind"] > FULL * trace["ring"]:
        return Finding(
            name, "warning", found, f"less than {FULL:.0%} of the ring",
            "the recorder does not keep up: a larger --trace-ring, a faster disk, or a CPU for it",
        )  # fmt: skip
    return ok(name, found)


CHECKS: tuple[Callable[[Trace], Finding], ...] = (recorder, completeness)
