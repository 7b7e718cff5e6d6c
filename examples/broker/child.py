"""What worker and follower processes have in common: how they begin and end."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final

READY: Final = "ready"


async def work(task: Coroutine[Any, Any, None] | None = None) -> None:
    """Tell the parent that this process is ready; return when it is to end.

    That is at SIGTERM and at the end of the standard input, which the parent holds: so its children
    end when it dies, however it dies.

    Parameters
    ----------
    task : coroutine, optional
        Runs meanwhile; if it ends by itself, so does this.
    """
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    loop.add_reader(sys.stdin.fileno(), ended.set)
    print(READY, flush=True)
    tasks: set[asyncio.Task[Any]] = {asyncio.create_task(ended.wait())}
    if task is not None:
        tasks.add(asyncio.create_task(task))
    done, waiting = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    loop.remove_reader(sys.stdin.fileno())
    for one in waiting:
        one.cancel()
        with suppress(asyncio.CancelledError):
            await one
    for one in done:
        one.result()
