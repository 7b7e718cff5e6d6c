"""Serves a daemon's metrics over HTTP, in the format that a scraper asks for.

An answer is computed once for all that ask for it before it starts. One thread serves all
connections: their number, the bytes of a request and the time of a connection are bounded. When all
places are taken, a connection that waits for its peer is closed, of the address that has the most
of these; one that waits for its answer is not. If all wait for theirs, no further one is accepted
until one has got it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import gzip
import http.client
import io
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from prometheus_client.exposition import choose_encoder, gzip_accepted

from wheeld.config import addresses
from wheeld.metrics import protobuf
from wheeld.metrics.prometheus import registry
from wheeld.processes.callers import Callers, OneForAll
from wheeld_core.errors import WheelError

CONNECTION_SECONDS: Final = 20.0
"""Seconds from a connection's begin to its end, whatever its peer does."""
REQUEST_SECONDS: Final = 10.0
MOST_CONNECTIONS: Final = 256
MOST_REQUEST: Final = 8192
"""Bytes of a request line and its headers."""
MOST_ANSWERS: Final = 8
"""Answers of different times that may be on their way to slow readers: each can be megabytes."""
LONGEST_PAUSE: Final = 1.0
"""Seconds; as in `OneForAll`: far less than a scraper waits."""
BACKLOG: Final = 1024
_OPENMETRICS: Final = "application/openmetrics-text"
_SERVED: Final = (_OPENMETRICS, "text/plain", "*/*")
"""The formats that prometheus-client writes."""
_END: Final = re.compile(rb"\n\r?\n")

Status = dict[str, Any]


class _Refused(Exception):
    """A request that is not answered: an HTTP status and its reason."""


class _Server:
    """The connections to one port, all served by the event loop that calls `serve`."""

    def __init__(self, read: Callable[[], Status], listener: socket.socket, daemon: str) -> None:
        self._read, self._daemon = read, daemon
        self._listener = listener
        self._callers = Callers()
        self._open: set[asyncio.Task[None]] = set()
        self._room = asyncio.Event()
        self._threads = ThreadPoolExecutor(2, "wheeld-metrics")
        self._status = OneForAll(self._find_status, LONGEST_PAUSE)
        self._answers: dict[tuple[str, bool], OneForAll[bytes]] = {
            (kind, zipped): OneForAll(functools.partial(self._find, kind, zipped), LONGEST_PAUSE)
            for kind in ("protobuf", *_SERVED[:2])
            for zipped in (False, True)
        }
        self._writing: dict[bytes, set[asyncio.Task[None]]] = {}

    async def serve(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:  # bounded by the exporter's life; one connection a round
                try:
                    end, peer = await loop.sock_accept(self._listener)
                except OSError:  # no descriptor is free
                    self._callers.make_room()
                    await asyncio.sleep(0.05)
                    continue
                task = loop.create_task(self._converse(end, peer[0]))
                self._open.add(task)
                task.add_done_callback(self._gone)
                while len(self._open) >= MOST_CONNECTIONS:
                    self._room.clear()
                    self._callers.make_room()
                    await self._room.wait()
        finally:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _gone(self, task: asyncio.Task[None]) -> None:
        self._open.discard(task)
        self._room.set()

    async def _converse(self, end: socket.socket, peer: str) -> None:
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError, TimeoutError), end:
            end.setblocking(False)
            async with asyncio.timeout(CONNECTION_SECONDS):
                try:
                    async with asyncio.timeout(REQUEST_SECONDS):
                        with self._callers.silent(peer, task.cancel):
                            method, key = _parsed(await self._request(end))
                    answer = await self._answers[key].get()
                    if method == "HEAD":
                        answer = answer[: answer.index(b"\r\n\r\n") + 4]
                except _Refused as refused:
                    answer = _response(str(refused), "text/plain", b"")
                with self._writes(answer, task), self._callers.silent(peer, task.cancel):
                    await loop.sock_sendall(end, answer)

    async def _request(self, end: socket.socket) -> bytes:
        loop, found = asyncio.get_running_loop(), b""
        while not _END.search(found):
            if len(found) >= MOST_REQUEST:
                raise _Refused("431 Request Header Fields Too Large")
            more = await loop.sock_recv(end, MOST_REQUEST - len(found))
            if not more:
                raise ConnectionError("hung up")
            found += more
        return found

    @contextlib.contextmanager
    def _writes(self, answer: bytes, task: asyncio.Task[None]) -> Iterator[None]:
        """During the block this answer is in memory; the oldest one makes room for it."""
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

    async def _find_status(self) -> Status | None:
        """The status of now; None: the daemon does not answer."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, self._read)
        except (WheelError, OSError):
            return None

    async def _find(self, kind: str, zipped: bool) -> bytes:
        status = await self._status.get()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._threads, _encoded, status, self._daemon, kind, zipped
        )


def _parsed(request: bytes) -> tuple[str, tuple[str, bool]]:
    lines = io.BytesIO(request)
    method = lines.readline().decode("latin-1").partition(" ")[0]
    if method not in ("GET", "HEAD"):
        raise _Refused("405 Method Not Allowed")
    try:
        headers = http.client.parse_headers(lines)
    except http.client.HTTPException as error:
        raise _Refused("400 Bad Request") from error
    accept = ",".join(headers.get_all("Accept", []))
    zipped = gzip_accepted(",".join(headers.get_all("Accept-Encoding", [])))
    return method, ("protobuf" if wants_protobuf(accept) else _text_format(accept), zipped)


def _text_format(accept: str) -> str:
    """The first that is named; OpenMetrics before 1.0 is not served."""
    for each in accept.split(","):
        kind, _, parameters = each.strip().partition(";")
        if kind == "text/plain" or (kind == _OPENMETRICS and "version=0" not in parameters):
            return kind
    return "text/plain"


def _encoded(status: Status | None, daemon: str, kind: str, zipped: bool) -> bytes:
    if kind == "protobuf":
        content_type, body = protobuf.CONTENT_TYPE, protobuf.exposition(status, daemon)
    else:
        encode, content_type = choose_encoder(kind)
        body = encode(registry(status, daemon))
    return _response("200 OK", content_type, gzip.compress(body, 1) if zipped else body, zipped)


def _response(status: str, content_type: str, body: bytes, zipped: bool = False) -> bytes:
    fields = [
        f"HTTP/1.1 {status}",
        f"Content-Type: {content_type}",
        f"Content-Length: {len(body)}",
        *(["Content-Encoding: gzip"] if zipped else []),
        "Connection: close",
    ]
    return "\r\n".join([*fields, "", ""]).encode() + body


def wants_protobuf(accept: str) -> bool:
    """Does the scraper prefer this format among those that are served?"""
    ours, others = 0.0, 0.0
    for each in accept.split(","):
        kind, _, parameters = each.strip().partition(";")
        found = re.search(r"\bq=([01](?:\.\d+)?)", parameters)
        liking = float(found[1]) if found else 1.0
        if kind == "application/vnd.google.protobuf" and "MetricFamily" in parameters:
            ours = max(ours, liking if "delimited" in parameters else 0.0)
        elif kind in _SERVED:
            others = max(others, liking)
    return 0 < ours >= others


@contextlib.contextmanager
def serve(read: Callable[[], Status], listen: str, daemon: str) -> Iterator[str]:
    """Serve the metrics for the block at `listen`, HOST:PORT; yields that address with the port
    that port 0 stands for.

    Each has the label `daemon`. `read` returns the status, in another thread, one call at a time;
    if it raises WheelError or OSError, there is only `wheeld_up 0`. `ValueError`: `listen` is not
    an address. `WheelError`: it cannot be listened on.
    """
    host, port = addresses.parse(listen)
    try:
        listener = _listener(host, port)
    except OSError as error:
        raise WheelError(f"{listen}: {_why(error)}") from error
    runner = asyncio.Runner()
    loop = runner.get_loop()
    task = loop.create_task(_Server(read, listener, daemon).serve())

    def run() -> None:
        with runner:
            runner.run(asyncio.wait([task]))

    thread = threading.Thread(target=run, name="wheeld-metrics", daemon=True)
    thread.start()
    try:
        yield addresses.text(host, listener.getsockname()[1])
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join()
        listener.close()


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
        "EADDRINUSE": "give another port, or end what listens there (`ss -ltnp` names it)",
        "EADDRNOTAVAIL": "expected an address of this host: `ip addr` lists them",
        "EACCES": "ports below 1024 are root's: give a higher one",
        "EAFNOSUPPORT": forbidden,
        "EPERM": forbidden,
    }
    advice = tries.get(errno.errorcode.get(error.errno or 0, ""))
    return f"{why}; {advice}" if advice else why
