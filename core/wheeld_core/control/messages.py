"""What is said over a daemon's control socket: the requests, and the answers that clients act on.

How a message travels: `wheeld_core.control`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, NotRequired, TypedDict

from wheeld_core import _native
from wheeld_core.control import time_namespace

Message = dict[str, Any]
"""One that was read, or that another part than this file makes."""


class Request(StrEnum):
    """`op` of a request."""

    HELLO = "hello"
    """Be a worker (`hello`): the answer is a `Welcome`. The connection stays for its life."""
    RESUME = "resume"
    """Have a connection again, for the worker that one was (`resume`): the answer is a `Back`."""
    BYE = "bye"
    """Be a worker no longer."""
    ALARM = "alarm"
    """The clock does not wake. It has no answer; core/include/wheeld/worker/client.h sends it."""
    STATUS = "status"
    """`status` of the answer is what `wheeld status --json` prints."""
    ADVANCE = "advance"
    """Move a virtual clock by `ns`; the answer has `now_ns`."""
    EVICT = "evict"
    """Kill the process of `worker`, or drop what a dead one left; the answer says which."""
    STOP = "stop"
    """End, and with `keep` leave the memory; the answer is a `Leaving`."""
    RESTART = "restart"
    """Become the program that is installed by now; the answer is a `Leaving`."""


class Back(TypedDict):
    """The answer to a worker that has its connection again."""

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
    """Its name, also if it gave none."""
    segments: dict[str, str]
    """Names in /dev/shm, by kind."""
    adopted: NotRequired[bool]
    """It is the successor of a worker of that name."""
    keep_for_s: NotRequired[float]
    max_per_worker: NotRequired[int | None]
    shm: NotRequired[list[int]]
    """Which /dev/shm the daemon has (`wheeld_core.segments.place`)."""


class Leaving(TypedDict):
    """The answer of a daemon that begins to end."""

    ok: bool
    pid: int
    patience_s: float
    """How long to wait for its end."""
    wheel: str
    """Name of a segment that is there while its memory is."""
    pending: int
    restarts: int
    """How many restarts in place there have been before."""
    keeps: bool
    """Its memory is left."""


def _kin() -> Message:
    """What both sides must have the same (`wheeld.supervisor.workers.compatibility`)."""
    return {
        "layout": _native.LAYOUT_VERSION,
        "fingerprint": _native.FINGERPRINT,
        "time": time_namespace.of_this_process(),
    }


def hello(worker: str | None, on_death: str, group: str | None, numbered: bool) -> Message:
    """A process that wants to be a worker; `numbered`: with a number of its own behind the name."""
    said = {"op": Request.HELLO, "worker": worker, "on_death": on_death, "group": group}
    return {**said, **_kin(), **({"numbered": True} if numbered else {})}


def resume(welcome: Welcome) -> Message:
    """A worker that had this welcome, and has lost its connection."""
    row, incarnation, token = welcome["row"], welcome["incarnation"], welcome["token"]
    known = {"row": row, "incarnation": incarnation, "token": token}
    return {"op": Request.RESUME, **known, **_kin()}
