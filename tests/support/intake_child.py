"""A process with an intake on a shared pool: `python intake_child.py DAEMON POOL`.

It prints its port. A request that begins with "hold" stays in its handler until the line "open"
comes by stdin; each is answered with itself. The end of stdin ends it.
"""

import asyncio
import sys

from wheeld_client import connect
from wheeld_client.intake.request import Request
from wheeld_client.intake.server import Intake
from wheeld_client.pool.memory_pool import MemoryPool


async def main(daemon: str, name: str) -> None:
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[str] = asyncio.Queue()
    loop.add_reader(0, lambda: lines.put_nowait(sys.stdin.readline()))
    opened = asyncio.Event()

    async def handler(request: Request) -> memoryview:
        if request.data[:4] == b"hold":
            await opened.wait()
        return request.data

    with connect(daemon) as timers:
        async with Intake(MemoryPool(timers, name), handler) as intake:
            intake._first_bytes = 1  # a half-read request may be small
            server = await intake.serve("127.0.0.1", 0)
            print(server.sockets[0].getsockname()[1], flush=True)
            while await lines.get() == "open\n":
                opened.set()
            loop.remove_reader(0)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
