"""The recorder's sleep while nothing is recorded: until the clock rings, or the supervisor speaks.

One thread waits in the kernel for the clock, and tells the main thread through a descriptor, beside
the supervisor's socket.
"""

from __future__ import annotations

import contextlib
import math
import os
import queue
import select
import threading

from wheeld_core import _native


class Bell:
    """For the main thread.

    Parameters
    ----------
    memory : Memory
        The trace segment.
    head : int
        The ring's head.
    channel : int
        The descriptor of the supervisor's socket.
    """

    def __init__(self, memory: _native.Memory, head: int, channel: int) -> None:
        self._memory = memory
        # It returns at once, and takes back that a killed recorder said that it sleeps.
        _native.trace_wait(memory, (head - 1) % 2**64)
        self._rung = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._asked: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._asleep = False
        self._poll = select.poll()
        for fd in (channel, self._rung):
            self._poll.register(fd, select.POLLIN)
        threading.Thread(target=self._listen, name="bell", daemon=True).start()

    def sleep(self, position: int, seconds: float | None) -> None:
        """Return when there is a record at `position` or a message, or after `seconds`."""
        if not self._asleep:
            self._asleep = True
            self._asked.put(position)
        self._poll.poll(None if seconds is None else math.ceil(seconds * 1000))
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._rung)
            self._asleep = False

    def _listen(self) -> None:
        while True:
            position = self._asked.get()
            with contextlib.suppress(ValueError):  # overwritten: the main thread finds that, too
                while not _native.trace_wait(self._memory, position):
                    pass
            os.eventfd_write(self._rung, 1)
