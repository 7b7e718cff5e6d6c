"""What worker and follower processes have in common: how they begin and end."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final

READY: Final = "ready"


async def work(*coroutines: Coroutine[Any, Any, None]) -> None:
    """Tell the parent that this process is ready; return when it is to end.

    That is at SIGTERM and at the end of the standard input, which the parent holds: so its children
    end with it, however it ends. The coroutines run meanwhile; one that fails ends the process.
    """
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    loop.add_reader(sys.stdin.fileno(), ended.set)
    print(READY, flush=True)
    tasks = {asyncio.create_task(one) for one in (ended.wait(), *coroutines)}
    done, waiting = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    loop.remove_reader(sys.stdin.fileno())
    for one in waiting:
        one.cancel()
        with suppress(asyncio.CancelledError):
            await one
    for one in done:
        one.result()
