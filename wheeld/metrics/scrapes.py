"""The metrics as a site, in the format that a scraper asks for.

Scrapers that ask before a computation starts share its answer.
"""

from __future__ import annotations

import asyncio
import functools
import gzip
import re
from collections.abc import Awaitable, Callable
from typing import Any, Final

from prometheus_client.exposition import choose_encoder, gzip_accepted

from wheeld.metrics import protobuf
from wheeld.metrics.prometheus import registry
from wheeld.metrics.server import READING, Request, response
from wheeld.processes.callers import OneForAll
from wheeld_core.errors import WheelError

LONGEST_PAUSE: Final = 1.0
"""Seconds; as in `OneForAll`: far less than a scraper waits."""
_OPENMETRICS: Final = "application/openmetrics-text"
_SERVED: Final = (_OPENMETRICS, "text/plain", "*/*")
"""The formats that prometheus-client writes."""

Status = dict[str, Any]


class Scrapes:
    """The metrics of `daemon`, each labelled with it, at any path.

    `read` returns its status, in another thread, one call at a time; if it raises WheelError or
    OSError, there is only `wheeld_up 0`.
    """

    methods = READING

    def __init__(self, read: Callable[[], Status], daemon: str) -> None:
        self._read, self._daemon = read, daemon
        self._status = OneForAll(self._find_status, LONGEST_PAUSE)
        self._answers: dict[tuple[str, bool], OneForAll[bytes]] = {
            (kind, zipped): OneForAll(functools.partial(self._find, kind, zipped), LONGEST_PAUSE)
            for kind in ("protobuf", *_SERVED[:2])
            for zipped in (False, True)
        }

    def find(self, request: Request) -> Callable[[], Awaitable[bytes]]:
        accept = ",".join(request.headers.get_all("Accept", []))
        zipped = gzip_accepted(",".join(request.headers.get_all("Accept-Encoding", [])))
        kind = "protobuf" if wants_protobuf(accept) else _text_format(accept)
        return self._answers[kind, zipped].get

    async def _find_status(self) -> Status | None:
        """The current status; None: the daemon does not answer."""
        try:
            return await asyncio.to_thread(self._read)
        except (WheelError, OSError):
            return None

    async def _find(self, kind: str, zipped: bool) -> bytes:
        status = await self._status.get()
        return await asyncio.to_thread(_encoded, status, self._daemon, kind, zipped)


def _text_format(accept: str) -> str:
    """The version that is named first; OpenMetrics before 1.0 is not served."""
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
    if not zipped:
        return response("200 OK", content_type, body)
    return response("200 OK", content_type, gzip.compress(body, 1), "Content-Encoding: gzip")


def wants_protobuf(accept: str) -> bool:
    """Whether the scraper prefers this format among the formats served."""
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
