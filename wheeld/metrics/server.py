"""Serves sites over HTTP, each at an address: the metrics (`scrapes`) and the page (`web`).

One thread serves all connections: their number, the bytes of a request and the time of a connection
are bounded. When all places are taken, a connection that waits for its peer is closed, from the
address with the most such connections; one that waits for its answer is not. If all of them wait
for answers, no further one is accepted until an answer has been sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import http.client
import io
import os
import re
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple, Protocol

from wheeld.config import addresses
from wheeld.processes.callers import Callers
from wheeld_core.errors import WheelError

CONNECTION_SECONDS: Final = 20.0
"""Seconds that a connection lasts at most, whatever its peer does."""
REQUEST_SECONDS: Final = 10.0
MOST_CONNECTIONS: Final = 256
MOST_REQUEST: Final = 8192
"""Bytes of a request line and its headers."""
MOST_ANSWERS: Final = 8
"""Number of different answers that may be on their way to slow readers; each can be megabytes."""
BACKLOG: Final = 1024
THREADS: Final = 4
"""For readings and encodings: of the metrics, of the page's figures, of its searches, and for
cancellations."""
READING: Final = frozenset(("GET", "HEAD"))
_END: Final = re.compile(rb"\n\r?\n")


class Refused(Exception):
    """A request that is not answered: an HTTP status and its reason, and lines of the head."""


class Request(NamedTuple):
    """A head; its body, if it has one, is not read."""

    method: str
    target: str
    headers: http.client.HTTPMessage


class Site(Protocol):
    """The answers at one address."""

    methods: frozenset[str]

    def find(self, request: Request) -> Callable[[], Awaitable[bytes]]:
        """A call that computes the answer, a whole `response`. `Refused`: there is none."""
        ...


class _Server:
    """The connections to all sites, all served by the event loop that calls `serve`."""

    def __init__(self) -> None:
        self._callers = Callers()
        self._open: set[asyncio.Task[None]] = set()
        self._room = asyncio.Event()
        self._writing: dict[bytes, set[asyncio.Task[None]]] = {}

    async def serve(self, listeners: Mapping[socket.socket, Site]) -> None:
        threads = ThreadPoolExecutor(THREADS, "wheeld-metrics")
        asyncio.get_running_loop().set_default_executor(threads)
        try:
            async with asyncio.TaskGroup() as group:
                for listener, site in listeners.items():
                    group.create_task(self._accept(listener, site))
        finally:
            threads.shutdown(wait=False, cancel_futures=True)

    async def _accept(self, listener: socket.socket, site: Site) -> None:
        loop = asyncio.get_running_loop()
        while True:  # bounded by the exporter's life; one connection a round
            try:
                end, peer = await loop.sock_accept(listener)
            except OSError:  # no descriptor is free
                self._callers.make_room()
                await asyncio.sleep(0.05)
                continue
            task = loop.create_task(self._converse(end, peer[0], site))
            self._open.add(task)
            task.add_done_callback(self._gone)
            while len(self._open) >= MOST_CONNECTIONS:
                self._room.clear()
                self._callers.make_room()
                await self._room.wait()

    def _gone(self, task: asyncio.Task[None]) -> None:
        self._open.discard(task)
        self._room.set()

    async def _converse(self, end: socket.socket, peer: str, site: Site) -> None:
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError, TimeoutError), end:
            end.setblocking(False)
            async with asyncio.timeout(CONNECTION_SECONDS):
                try:
                    async with asyncio.timeout(REQUEST_SECONDS):
                        with self._callers.silent(peer, task.cancel):
                            request = _parsed(await self._request(end))
                    if request.method not in site.methods:
                        raise Refused("405 Method Not Allowed")
                    answer = await site.find(request)()
                    if request.method == "HEAD":
                        answer = answer[: answer.index(b"\r\n\r\n") + 4]
                except Refused as refused:
                    answer = response(refused.args[0], "text/plain", b"", *refused.args[1:])
                with self._writes(answer, task), self._callers.silent(peer, task.cancel):
                    await loop.sock_sendall(end, answer)

    async def _request(self, end: socket.socket) -> bytes:
        loop, found = asyncio.get_running_loop(), b""
        while not _END.search(found):
            if len(found) >= MOST_REQUEST:
                raise Refused("431 Request Header Fields Too Large")
            more = await loop.sock_recv(end, MOST_REQUEST - len(found))
            if not more:
                raise ConnectionError("hung up")
            found += more
        return found

    @contextlib.contextmanager
    def _writes(self, answer: bytes, task: asyncio.Task[None]) -> Iterator[None]:
        """Keep this answer in memory during the block, in place of the oldest one."""
        if answer not in self._writing and len(self._writing) >= MOST_ANSWERS:
            for slow in self._writing.pop(next(iter(self._writing))):
                slow.cancel()
        mine = self._writing.setdefault(answer, set())
        mine.add(task)
        self._room.set()  # from here on it can make room
        try:
            yield
        finally:
            mine.discard(task)
            if not mine and self._writing.get(answer) is mine:
                del self._writing[answer]


def _parsed(text: bytes) -> Request:
    lines = io.BytesIO(text)
    method, _, rest = lines.readline().decode("latin-1").partition(" ")
    target = rest.partition(" ")[0].strip()
    try:
        return Request(method, target, http.client.parse_headers(lines))
    except http.client.HTTPException as error:
        raise Refused("400 Bad Request") from error


def response(status: str, content_type: str, body: bytes, *more: str) -> bytes:
    """A whole answer; `more` are additional lines of its head."""
    fields = [
        f"HTTP/1.1 {status}",
        f"Content-Type: {content_type}",
        f"Content-Length: {len(body)}",
        *more,
        "Connection: close",
    ]
    return "\r\n".join([*fields, "", ""]).encode() + body


@contextlib.contextmanager
def serve(sites: Mapping[str, tuple[str, Site]]) -> Iterator[list[str]]:
    """Serve sites during the block, each at an address, HOST:PORT; yields the addresses, with the
    actual port in place of port 0. The keys name the sites in errors.

    `ValueError`: it is not an address. `WheelError`: listening there fails.
    """
    listeners: dict[socket.socket, Site] = {}
    found = []
    with contextlib.ExitStack() as stack:
        for name, (address, site) in sites.items():
            host, port = addresses.parse(address)
            try:
                listener = stack.enter_context(_listener(host, port))
            except OSError as error:
                raise WheelError(f"{name} {address}: {_why(error)}") from error
            listeners[listener] = site
            found.append(addresses.text(host, listener.getsockname()[1]))
        stack.enter_context(_serving(listeners))
        yield found


@contextlib.contextmanager
def _serving(listeners: Mapping[socket.socket, Site]) -> Iterator[None]:
    runner = asyncio.Runner()
    loop = runner.get_loop()
    task = loop.create_task(_Server().serve(listeners))

    def run() -> None:
        with runner:
            runner.run(asyncio.wait([task]))

    thread = threading.Thread(target=run, name="wheeld-metrics", daemon=True)
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join()


def _listener(host: str, port: int) -> socket.socket:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family = found[0][0]
    both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
    listener = socket.create_server(
        (host, port), family=family, backlog=BACKLOG, dualstack_ipv6=both
    )
    listener.setblocking(False)
    return listener


def _why(error: OSError) -> str:
    """Why an address cannot be used, and what to try."""
    if isinstance(error, socket.gaierror):
        return f"{error.strerror}; expected a name or an address of this host"
    why = os.strerror(error.errno) if error.errno else str(error)
    forbidden = "the service manager forbids it (RestrictAddressFamilies=): docs/metrics.md"
    tries = {
        "EADDRINUSE": "give another port, or end the process that listens there "
        "(`ss -ltnp` names it)",
        "EADDRNOTAVAIL": "expected an address of this host: `ip addr` lists them",
        "EACCES": "ports below 1024 are reserved for root: give a higher one",
        "EAFNOSUPPORT": forbidden,
        "EPERM": forbidden,
    }
    advice = tries.get(errno.errorcode.get(error.errno or 0, ""))
    return f"{why}; {advice}" if advice else why
