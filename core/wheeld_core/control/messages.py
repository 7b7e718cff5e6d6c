"""The messages of a daemon's control socket: the requests, and the answers that clients use.

`wheeld_core.control` transfers them.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Any, NotRequired, TypedDict

from wheeld_core import _native
from wheeld_core.control import time_namespace

Message = dict[str, Any]
"""A message as received, or one that is not declared here."""


class Request(StrEnum):
    """`op` of a request."""

    HELLO = "hello"
    """Become a worker (`hello`): the answer is a `Welcome`. The connection lasts as long as the
    worker."""
    RESUME = "resume"
    """Reconnect an existing worker (`resume`): the answer is a `Back`."""
    BYE = "bye"
    ALARM = "alarm"
    """Reports that the clock does not wake. It has no answer; core/include/wheeld/worker/client.h
    sends it."""
    STATUS = "status"
    """`status` of the answer is what `wheeld status --json` prints."""
    ADVANCE = "advance"
    """Move a virtual clock by `ns`; the answer has `now_ns`."""
    ADDRESS = "address"
    """Make sure that detached timers can wait for the receiver `to`."""
    JOIN = "join"
    """Add a connected worker (`resume`) to `group`, too."""
    LEAVE = "leave"
    """End that."""
    EVICT = "evict"
    """Kill the process of `worker`, or drop what a dead one left; the answer says which."""
    DRAIN = "drain"
    """Give `worker` nothing new of its groups, and drop nothing of it when it ends; the answer says
    what becomes of that."""
    EVENTS = "events"
    """The last `events`, oldest first, and how many were `forgotten`."""
    STOP = "stop"
    """End; with `keep`, leave the memory. The answer is a `Leaving`."""
    RESTART = "restart"
    """Restart in place, as the program that is installed now; the answer is a `Leaving`."""


class Back(TypedDict):
    """The answer to a worker that has reconnected."""

    ok: bool
    row: int
    clock_fifo: str
    """Names in the runtime directory."""
    worker_fifo: str


class Welcome(Back):
    """The answer to a worker's hello; all but the last three are checked by the client."""

    token: int
    """The number of the wheel."""
    incarnation: int
    worker: str
    """The worker's name, even if the daemon chose it."""
    segments: dict[str, str]
    """Names in /dev/shm, by kind."""
    adopted: NotRequired[bool]
    """It is the successor of a worker of the same name."""
    keep_for_s: NotRequired[float]
    max_per_worker: NotRequired[int | None]
    shm: NotRequired[list[int]]
    """Identifies the daemon's /dev/shm (`wheeld_core.segments.place`)."""


class Leaving(TypedDict):
    """The answer of a daemon that is about to end."""

    ok: bool
    pid: int
    patience_s: float
    """Seconds to wait for its end."""
    wheel: str
    """Name of a segment that exists as long as its memory does."""
    pending: int
    restarts: int
    """The number of earlier restarts in place."""
    keeps: bool
    activated: bool
    """The service manager listens for the next daemon: the socket stays."""


def _kin() -> Message:
    """These must be equal on both sides (`wheeld.supervisor.workers.check_compatible`)."""
    return {
        "layout": _native.LAYOUT_VERSION,
        "fingerprint": _native.FINGERPRINT,
        "time": time_namespace.of_this_process(),
    }


def hello(
    worker: str | None, on_death: str, group: str | None, numbered: bool, joined: Iterable[str]
) -> Message:
    """The request to become a worker; `numbered`: the daemon appends a number to the name;
    `joined`: the groups that the worker joined while running."""
    said = {"op": Request.HELLO, "worker": worker, "on_death": on_death, "group": group}
    more: Message = {"numbered": True} if numbered else {}
    if names := sorted(joined):
        more["joined"] = names
    return {**said, **_kin(), **more}


def resume(welcome: Welcome) -> Message:
    """The request of a worker that got this welcome and has lost its connection."""
    row, incarnation, token = welcome["row"], welcome["incarnation"], welcome["token"]
    known = {"row": row, "incarnation": incarnation, "token": token}
    return {"op": Request.RESUME, **known, **_kin()}
