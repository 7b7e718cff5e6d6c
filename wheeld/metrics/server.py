"""Serves a daemon's metrics over HTTP, in the format that a scraper asks for.

Each scrape has a thread, so a slow one keeps no other waiting. Each may be silent for a limited
time, and when too many are connected the oldest connection is closed: so none of them can occupy
all places.
"""

from __future__ import annotations

import contextlib
import errno
import re
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from socketserver import ThreadingMixIn
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer
from wsgiref.types import StartResponse, WSGIEnvironment

from prometheus_client import make_wsgi_app

from wheeld.config import addresses
from wheeld.metrics import protobuf
from wheeld.metrics.prometheus import registry
from wheeld_core.errors import WheelError

SILENT_SECONDS: Final = 10.0
MOST_CONNECTIONS: Final = 32
_SERVED: Final = ("application/openmetrics-text", "text/plain", "*/*")
"""What prometheus-client writes."""

Status = dict[str, Any]


def application(read: Callable[[], Status]) -> Callable[..., Iterable[bytes]]:
    """The WSGI application; `read` is as in `prometheus.DaemonCollector`."""
    text: Callable[..., Iterable[bytes]] = make_wsgi_app(registry(read))

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if not wants_protobuf(environ.get("HTTP_ACCEPT", "")):
            return text(environ, start_response)
        try:
            found = protobuf.exposition(read())
        except (WheelError, OSError):
            found = protobuf.exposition(None)
        length = str(len(found))
        headers = [("Content-Type", protobuf.CONTENT_TYPE), ("Content-Length", length)]
        start_response("200 OK", headers)
        return [found]

    return app


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


class _Handler(WSGIRequestHandler):
    timeout = SILENT_SECONDS

    def log_message(self, format: str, *args: Any) -> None:
        """A scrape is no news."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, host: str, port: int) -> None:
        self._open: dict[Any, None] = {}
        self._ended = False
        self._changing = threading.Lock()
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family = found[0][0]
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        """Skips looking up this host's name, which could ask a DNS server."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()

    def serve(self) -> None:
        """Serve until `end`, without the polling of `serve_forever`."""
        while not self._ended:
            self.handle_request()

    def end(self) -> None:
        """Make `serve` return; called by another thread."""
        self._ended = True
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve it in a thread; the oldest connection is closed if there are too many."""
        with self._changing:
            if len(self._open) >= MOST_CONNECTIONS:
                with contextlib.suppress(OSError):
                    next(iter(self._open)).shutdown(socket.SHUT_RDWR)
                self._open.pop(next(iter(self._open)))
            self._open[request] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """It is over."""
        with self._changing:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Errors are not logged, either: scrapers may hang up at any time."""


@contextlib.contextmanager
def serve(read: Callable[[], Status], listen: str) -> Iterator[str]:
    """Serve the metrics for the block.

    Parameters
    ----------
    read : callable
        As in `prometheus.DaemonCollector`; called in several threads.
    listen : str
        HOST:PORT; port 0: any that is free.

    Yields
    ------
    str
        The address, with the port.

    Raises
    ------
    ValueError
        `listen` is not an address.
    WheelError
        It cannot be listened on.
    """
    host, port = addresses.parse(listen)
    try:
        server = _Server(host, port)
    except OSError as error:
        raise WheelError(f"{listen}: {_why(error)}") from error
    server.set_app(application(read))
    thread = threading.Thread(target=server.serve, name="wheeld-metrics", daemon=True)
    thread.start()
    try:
        yield addresses.text(host, server.server_port)
    finally:
        server.end()
        thread.join()
        server.server_close()


def _why(error: OSError) -> str:
    """Why an address cannot be used, and what to try."""
    why = error.strerror or str(error)
    if isinstance(error, socket.gaierror):
        return f"{why}; expected a name or an address of this host"
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
