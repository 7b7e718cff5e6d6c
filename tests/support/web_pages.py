"""Requests to the page of a daemon."""

from __future__ import annotations

import http.client
import json
from typing import Any

from daemons import LONG, Daemon, until


def address(daemon: Daemon) -> str:
    return str(until(lambda: daemon.status()["web"]["address"], "the page"))


def get(
    address: str, path: str = "/", *, method: str = "GET", **headers: str
) -> http.client.HTTPResponse:
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=LONG)
    connection.putrequest(method, path, skip_host="Host" in headers)
    for name, value in headers.items():
        if value:
            connection.putheader(name.replace("_", "-"), value)
    connection.endheaders()
    return connection.getresponse()


def answer(address: str, path: str) -> Any:
    return json.loads(get(address, path).read())
