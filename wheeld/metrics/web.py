"""The web page of a daemon: one file that shows the difference between two readings of its status.

It only reads, unless `--web-admin` names a file with a token: then who knows the token may cancel
timers, with a POST whose `Origin` is the page's own.

The page asks for `state` every other second, and for `timers` when somebody searches. Workers
choose names and keys freely: these leave here as JSON only, and the page makes text nodes of them.
It runs only its own script and style, whose hashes its policy names, and contacts no other server.

A request must name this host. Otherwise a page of another site whose name resolves to this host
(DNS rebinding) could read the answers.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import ipaddress
import json
import re
import socket
import urllib.parse
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from wheeld.config import addresses
from wheeld.metrics.activity import Look, compare, look
from wheeld.metrics.passing import in_passing
from wheeld.metrics.pending import TimerFilter, search
from wheeld.metrics.server import READING, Refused, Request, response
from wheeld.metrics.tokens import Rights, Tokens, unauthorized
from wheeld.processes.callers import OneForAll
from wheeld_client import Observer
from wheeld_core.errors import WheelError

LONGEST_PAUSE: Final = 1.0
"""Seconds; as in `OneForAll`."""
SHORTEST_SPAN: Final = 1.0
"""Shortest time over which rates are computed, once it has been read for that long."""
FORGET_SECONDS: Final = 30.0
"""Rates over a longer time than this do not count as current."""
MOST_ROWS: Final = 50
"""Timers that a search shows."""
MOST_SEARCHES: Final = 16
"""Different texts that one reading of the slots looks for."""
LONGEST_SEARCH: Final = 200
"""Characters."""
CANCEL_SECONDS: Final = 5.0
"""How long a cancellation waits for the daemon, and for a free row."""
MOST_ID: Final = 2**64 - 1
_SAFE: Final = (
    "Cache-Control: no-store",
    "X-Content-Type-Options: nosniff",
    "Referrer-Policy: no-referrer",
    "Cross-Origin-Resource-Policy: same-origin",
)
_NOTHING: Final = "Content-Security-Policy: default-src 'none'; frame-ancestors 'none'"
_POLICY: Final = (
    "default-src 'none'; img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)

Status = dict[str, Any]


class Web:
    """The page of the daemon in `directory`, at `listen`, HOST:PORT.

    `read` returns its status, in another thread, one call at a time. If it raises WheelError or
    OSError, the page says so. `tell` logs what the page has changed.
    """

    def __init__(
        self,
        read: Callable[[], Status],
        directory: Path,
        listen: str,
        tokens: Tokens | None = None,
        tell: Callable[[str], object] = str,
    ) -> None:
        self._read, self._directory, self._tell = read, directory, tell
        self._tokens = tokens or Tokens()
        self.methods = READING | ({"POST"} if self._tokens.most.cancel else set())
        self._cancelling = asyncio.Lock()
        self._hosts = {
            "localhost",
            socket.gethostname().lower(),
            addresses.parse(listen)[0].lower(),
        }
        self._page = _page()
        self._looks: list[Look] = []
        self._state = OneForAll(self._find_state, LONGEST_PAUSE)
        self._asked: set[str] = set()
        self._timers = OneForAll(self._find_timers, LONGEST_PAUSE)

    def find(self, request: Request) -> Callable[[], Awaitable[bytes]]:
        if not self._names_us(request.headers.get_all("Host", [])):
            raise Refused("421 Misdirected Request")
        path, _, query = request.target.partition("?")
        if request.method == "POST" and not _from_our_page(request):
            raise Refused("403 Forbidden")
        if path == "/" and request.method in READING:
            return self._index
        rights = self._tokens.rights(request)
        if path == "/cancel" and request.method == "POST":
            if not rights.cancel:
                raise unauthorized()
            by = _named(query)
            return lambda: self._cancel(by)
        if request.method == "POST":
            raise Refused("405 Method Not Allowed")
        if path == "/rights":
            return lambda: self._rights(rights)
        if path in ("/state", "/timers") and not rights.read:
            raise unauthorized()
        if path == "/state":
            return self._state.get
        if path == "/timers":
            return lambda: self._search(_text(query))
        raise Refused("404 Not Found")

    def _names_us(self, hosts: list[str]) -> bool:
        """Any address is accepted, since rebinding needs a name."""
        if len(hosts) != 1 or not (found := _HOST.fullmatch(hosts[0].strip())):
            return False
        host = found[1].strip("[]").lower()
        try:
            ipaddress.ip_address(host)
        except ValueError:
            return host in self._hosts
        return True

    async def _index(self) -> bytes:
        return self._page

    async def _rights(self, rights: Rights) -> bytes:
        return _json("200 OK", {**rights._asdict(), "more": rights != self._tokens.most})

    async def _cancel(self, by: dict[str, Any]) -> bytes:
        what = " ".join(f"{name} {value!r}" for name, value in by.items())
        directory = str(self._directory)
        try:
            async with self._cancelling:
                done = await asyncio.to_thread(
                    in_passing, directory, None, CANCEL_SECONDS, lambda timers: timers.cancel(**by)
                )
        except (ValueError, TypeError) as error:
            return _json("400 Bad Request", {"trouble": str(error)})
        except (WheelError, OSError) as error:
            return _json("503 Service Unavailable", {"trouble": str(error)})
        if not done:
            return _json("404 Not Found", {"trouble": f"no pending timer has the {what}"})
        self._tell(f"the page has cancelled the timer of the {what}")
        return _json("200 OK", {"cancelled": True})

    async def _find_state(self) -> bytes:
        try:
            return await asyncio.to_thread(self._compared)
        except (WheelError, OSError) as error:
            return _json("503 Service Unavailable", {"trouble": str(error)})

    def _compared(self) -> bytes:
        now = look(self._read)
        before = [each for each in self._looks if now[0] - each[0] < FORGET_SECONDS]
        first = before[0] if before else now
        if not before or now[0] - before[-1][0] >= SHORTEST_SPAN:
            self._looks = [*before, now][-2:]
        seconds = max(now[0] - first[0], 0.001)
        return _json("200 OK", compare(first[1], now[1], seconds))

    async def _search(self, text: str) -> bytes:
        """Searches that come while one is running share the next reading of the slots."""
        if text not in self._asked and len(self._asked) >= MOST_SEARCHES:
            raise Refused("503 Service Unavailable")
        self._asked.add(text)
        return (await self._timers.get())[text]

    async def _find_timers(self) -> dict[str, bytes]:
        asked, self._asked = list(self._asked), set()
        return await asyncio.to_thread(self._searched, asked)

    def _searched(self, texts: list[str]) -> dict[str, bytes]:
        try:
            with Observer(str(self._directory)) as observer:
                wanted = [TimerFilter(contains=text, limit=MOST_ROWS) for text in texts]
                found = search(observer, wanted)
        except (WheelError, OSError) as error:
            return dict.fromkeys(texts, _json("503 Service Unavailable", {"trouble": str(error)}))
        return {text: _rows(rows) for text, rows in zip(texts, found, strict=True)}


_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:@/?#\s]+)(?::\d{1,5})?")


_ID: Final = re.compile("[0-9]{1,20}")


def _from_our_page(request: Request) -> bool:
    """Browsers name the page that sends a POST, and no page can change that."""
    hosts, origins = (request.headers.get_all(name, []) for name in ("Host", "Origin"))
    ours = {f"{scheme}://{hosts[0].strip().lower()}" for scheme in ("http", "https")}
    return len(origins) == 1 and origins[0].strip().lower() in ours


def _fields(query: str) -> dict[str, list[str]]:
    try:
        return urllib.parse.parse_qs(query, True, errors="strict", max_num_fields=4)
    except ValueError as error:
        raise Refused("400 Bad Request") from error


def _named(query: str) -> dict[str, Any]:
    """The timer that is meant, as `Timers.cancel` takes it: `id`, or `key`, a text."""
    found = _fields(query)
    by = {name: values[0] for name, values in found.items() if len(values) == 1}
    if set(by) == set(found) == {"key"}:
        return by
    if set(by) == set(found) == {"id"} and _ID.fullmatch(by["id"]) and int(by["id"]) <= MOST_ID:
        return {"id": int(by["id"])}
    raise Refused("400 Bad Request")


def _text(query: str) -> str:
    text = _fields(query).get("key", [""])[0]
    if len(text) > LONGEST_SEARCH:
        raise Refused("414 URI Too Long")
    return text


def _rows(timers: list[dict[str, Any]]) -> bytes:
    """Integers of 64 bits as strings, because numbers of JavaScript have fewer bits."""
    shown = [{**each, "id": str(each["id"]), "cookie": str(each["cookie"])} for each in timers]
    return _json("200 OK", {"timers": shown, "most": MOST_ROWS})


def _json(status: str, found: object) -> bytes:
    return response(status, "application/json", json.dumps(found).encode(), *_SAFE, _NOTHING)


def _page() -> bytes:
    page = Path(__file__).with_name("templates").joinpath("page.html").read_bytes()
    hashes = {
        tag: base64.b64encode(hashlib.sha256(_between(page, tag)).digest()).decode()
        for tag in ("style", "script")
    }
    policy = "; ".join([_POLICY, *(f"{tag}-src 'sha256-{hashes[tag]}'" for tag in hashes)])
    return response(
        "200 OK",
        "text/html; charset=utf-8",
        page,
        *_SAFE,
        "Cross-Origin-Opener-Policy: same-origin",
        f"Content-Security-Policy: {policy}",
    )


def _between(page: bytes, tag: str) -> bytes:
    return page.partition(f"<{tag}>".encode())[2].partition(f"</{tag}>".encode())[0]
