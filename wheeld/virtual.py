"""Moving the virtual clock of a daemon."""

from __future__ import annotations

import os

from wheeld_core import runtime
from wheeld_core.arguments import step_ns
from wheeld_core.control import ask
from wheeld_core.control.messages import Request

ANSWER_SECONDS = 600.0
"""Seconds to wait: a long advance takes a while, because the clock goes from bucket to bucket."""


def advance(name: str, seconds: float, *, runtime_dir: str | os.PathLike[str] | None = None) -> int:
    """Move a daemon's virtual clock, from one due time to the next.

    When it returns, everything that fell due on the way can be polled without waiting: `poll(0)`
    returns it in order until nothing is left, each event with its own time in `fired`.

    Parameters
    ----------
    name : str
        Name of the daemon, or the path of its runtime directory.
    seconds : float
        How far, 0 or more.
    runtime_dir : path, optional
        Directory that holds the runtime directory; default: the usual places.

    Returns
    -------
    int
        The virtual time, ns, as events and `status` have it.

    Raises
    ------
    ValueError
        It runs on the real clock, or `seconds` is negative or not a number.
    DaemonNotRunning
        There is none.
    """
    return advance_ns(name, step_ns(seconds), runtime_dir)


def advance_ns(name: str, step_ns: int, runtime_dir: str | os.PathLike[str] | None = None) -> int:
    directory = runtime.find(name, runtime_dir)
    return int(ask(directory, Request.ADVANCE, ANSWER_SECONDS, ns=step_ns)["now_ns"])
