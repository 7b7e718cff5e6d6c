"""Waiting under gevent, where a thread runs many greenlets: while one waits, the others run.

Nothing here imports gevent: if it is not loaded, it has patched nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

PATCHED = ("select", "socket", "threading", "thread", "time")


def is_patched() -> bool:
    """Whether gevent has patched the calls with which this process waits."""
    monkey: Any = sys.modules.get("gevent.monkey")
    return monkey is not None and any(map(monkey.is_module_patched, PATCHED))


def is_current() -> bool:
    """Whether this code runs in the hub itself, such as in a signal handler or an event's callback.
    It cannot wait."""
    from gevent import get_hub, getcurrent

    return getcurrent() is get_hub()


def current() -> Any:
    from gevent import getcurrent

    return getcurrent()


def soon(call: Callable[[], object]) -> None:
    from gevent import get_hub

    get_hub().loop.run_callback(call)


def wait(fds: list[int], seconds: float | None) -> None:
    """Wait until one of the descriptors is readable or hung up, or the time is over; other
    greenlets run."""
    from gevent import select, sleep

    if not fds:
        sleep(seconds)
        return
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    poll.poll(None if seconds is None else seconds * 1000)


def hand_on(error: BaseException) -> bool:
    """Raise an error in the main greenlet, as gevent does with errors that end a program.

    False: it was not raised, because there are no greenlets, or this is the main one.
    """
    if not is_patched():
        return False
    from gevent import get_hub, getcurrent

    hub = get_hub()
    if getcurrent() is hub.parent:
        return False
    hub.handle_system_error(type(error), error)
    return True
