"""`wheeld doctor --client`: checks whether this process can be a worker of the daemon.

The checks follow the steps of `connect`, and end where it would fail: later steps cannot be
checked.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from wheeld.doctor.machine import Finding, ok
from wheeld.resources.remains import facts_of, own_pid_namespace
from wheeld_client import connect
from wheeld_core import _native, control, presence, runtime, segments, trust
from wheeld_core.control import time_namespace
from wheeld_core.control.messages import Request
from wheeld_core.errors import DaemonNotRunning, LayoutMismatch, WheelError

ANSWER_SECONDS: Final = 5.0
SAME_USER: Final = (
    "run this program as the daemon's user, or start the daemon with --group and be a member of "
    "that group"
)


def checks(name: str, runtime_dir: Path | None) -> Iterator[Finding]:
    """The findings, up to the first failure."""
    for finding in _checks(name, runtime_dir):
        yield finding
        if finding.status == "failure":
            return


def _checks(name: str, runtime_dir: Path | None) -> Iterator[Finding]:
    places = runtime.candidates(name, runtime_dir)
    yield _place(places, name)
    directory = next(path for path in places if _serves(path) is not False)
    yield _user(directory)
    yield _socket(directory)
    if facts := facts_of(directory):
        yield _memory(facts)
        yield _clocks(facts)
        yield _layout(facts)
    status, refusal = _status(directory)
    yield refusal or ok("permission", f"uid {os.geteuid()} may use it")
    yield _connection(directory, status)


def _serves(directory: Path) -> bool | None:
    """Whether there is a socket; None: this process cannot see it."""
    if directory.is_dir() and not os.access(directory, os.X_OK):
        return None
    return (directory / runtime.CONTROL_SOCKET).exists()


def _place(places: list[Path], name: str) -> Finding:
    check = "daemon"
    if found := [str(path) for path in places if _serves(path) is not False]:
        return ok(check, f"a daemon runs in {found[0]}")
    looked = ", ".join(f"{path} ({_seen(path)})" for path in places)
    advice = "`wheeld start`" if "/" in name else f"`wheeld start --name {name}`"
    advice += ", or connect(start='if-needed')"
    if any(map(presence.is_left, places)):
        advice += "; it continues with the timers of the one that was killed there"
    if os.environ.get(runtime.ENV_RUNTIME_DIR):
        advice += f"; ${runtime.ENV_RUNTIME_DIR} is set, and must be the same for both"
    return Finding(check, "failure", f"none in {looked}", "a control socket", advice)


def _seen(path: Path) -> str:
    if not path.parent.is_dir():
        return f"no {path.parent}"
    return "no socket" if path.is_dir() else "not there"


def _user(directory: Path) -> Finding:
    check = "user"
    try:
        status = os.stat(directory)
        if not os.access(directory, os.X_OK):
            mode = stat.S_IMODE(status.st_mode)
            found = f"{directory} is of uid {status.st_uid}, mode {mode:04o}"
            return Finding(check, "failure", found, f"uid {os.geteuid()} to enter it", SAME_USER)
        trust.check(directory)
    except OSError as error:
        return Finding(check, "failure", str(error), "a daemon that can be trusted", SAME_USER)
    return ok(check, f"{directory} is of uid {status.st_uid}, this process of {os.geteuid()}")


def _socket(directory: Path) -> Finding:
    check, expected = "socket", "a daemon that listens"
    try:
        control.Connection(directory, ANSWER_SECONDS).close()
    except DaemonNotRunning as error:
        advice = "`wheeld start` takes over what it left"
        return Finding(check, "failure", str(error), expected, advice)
    except OSError as error:
        return Finding(check, "failure", str(error), expected, SAME_USER)
    return ok(check, "a daemon listens")


def _status(directory: Path) -> tuple[dict[str, Any], Finding | None]:
    check, expected = "permission", "an answer"
    try:
        return control.ask(directory, Request.STATUS, ANSWER_SECONDS)["status"], None
    except PermissionError as error:
        return {}, Finding(check, "failure", str(error), expected, SAME_USER)
    except WheelError as error:
        advice = "`wheeld doctor` says what is wrong with the daemon; its log, too"
        return {}, Finding(check, "failure", str(error), expected, advice)


def _memory(facts: dict[str, Any]) -> Finding:
    check = "mount namespace"
    if why := segments.elsewhere(facts.get("shm")):
        found, _, advice = why.partition(". ")
        return Finding(check, "failure", found, f"the daemon's {segments.SHM_DIRECTORY}", advice)
    return ok(check, f"{segments.SHM_DIRECTORY} is the daemon's")


def _clocks(facts: dict[str, Any]) -> Finding:
    check, ours = "time namespace", time_namespace.of_this_process()
    if why := time_namespace.difference(facts.get("time"), ours):
        advice = "run both with the same time offsets"
        return Finding(check, "failure", why, "the daemon's clocks", advice)
    return ok(check, "the clocks are the daemon's")


def _layout(facts: dict[str, Any]) -> Finding:
    check = "layout"
    ours = f"version {_native.LAYOUT_VERSION} ({_native.FINGERPRINT})"
    try:
        segments.attach(facts["segments"]["wheel"], _native.KIND_WHEEL, writable=False)
    except LayoutMismatch as error:
        advice = (
            "install the same wheeld on both sides; `wheeld restart` brings a daemon to the "
            "version that is installed now"
        )
        return Finding(check, "failure", str(error), ours, advice)
    except (WheelError, OSError) as error:
        advice = "`wheeld fsck` looks at the segments"
        return Finding(check, "failure", str(error), "segments that can be mapped", advice)
    return ok(check, ours)


def _connection(directory: Path, status: dict[str, Any]) -> Finding:
    check, expected = "connection", "a worker that gets a timer"
    theirs, ours = status.get("pid_namespace"), own_pid_namespace()
    apart = f"pid namespace {ours}, the daemon's is {theirs}"
    try:
        with contextlib.closing(connect(str(directory), timeout=ANSWER_SECONDS)) as timers:
            timers.schedule(0.0)
            if len(timers.poll(ANSWER_SECONDS)) == 0:
                found, advice = "connected, but no timer came", "`wheeld doctor` looks at the clock"
                return Finding(check, "failure", found, expected, advice)
    except (WheelError, OSError, ValueError) as error:
        advice = "`wheeld status` shows its workers, `wheeld doctor` what ails it"
        found = str(error)
        if theirs not in (None, ours):
            found += f" ({apart})"
            advice = "share the daemon's: `docker run --pid=host`, or --pid=container:NAME"
        return Finding(check, "failure", found, expected, advice)
    below = f"; {apart}, which it can see into" if theirs not in (None, ours) else ""
    return ok(check, f"connected, and got a timer{below}")
