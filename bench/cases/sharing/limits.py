"""Limits: one hit of each, and requests of an application of Flask with flask-limiter.

The application is called in the process, without a server and without HTTP, which cost the
same with each storage. `memory://` counts in one process only.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np

import wheeld
import wheeld_client
from bench.cases import servers
from bench.processes import Sample, Watch

CUSTOMERS = 1_000
LIMIT = "60000/minute"
"""More than is asked for: each request is answered."""
KEYS = 100_000
MOST = 50_000_000
"""Hits in a minute that are allowed: all are taken."""


def _storage(kind: str, stack: ExitStack) -> str:
    if kind == "memory":
        return "memory://"
    if kind == "Redis":
        _, place = stack.enter_context(servers.redis())
        return f"redis+unix://{place}"
    import wheeld_client.integrations.limits  # noqa: F401 - registers wheeld://

    return f"wheeld://{stack.enter_context(wheeld.embedded(capacity=65_536))}"


def _application(storage: str, strategy: str) -> Any:
    from flask import Flask, request
    from flask_limiter import Limiter

    app = Flask("bench")
    limiter = Limiter(
        lambda: request.path,
        app=app,
        storage_uri=storage,
        strategy=strategy,
        key_prefix=strategy,
        headers_enabled=True,
    )

    @app.get("/<int:customer>")
    @limiter.limit(LIMIT)
    def hello(customer: int) -> str:
        return str(customer)

    return app


def _environ(path: str) -> dict[str, Any]:
    return {
        "REQUEST_METHOD": "GET", "PATH_INFO": path, "SCRIPT_NAME": "", "QUERY_STRING": "",
        "SERVER_NAME": "localhost", "SERVER_PORT": "80", "SERVER_PROTOCOL": "HTTP/1.1",
        "wsgi.url_scheme": "http", "wsgi.input": io.BytesIO(), "wsgi.errors": sys.stderr,
        "wsgi.version": (1, 0), "wsgi.multithread": False, "wsgi.multiprocess": True,
        "wsgi.run_once": False,
    }  # fmt: skip


def requests(kind: str, quick: bool) -> Iterator[Sample]:
    """Of one process, one after the other."""
    servers.package("flask_limiter")
    count, watch = 20 if quick else 2_000, Watch()
    with ExitStack() as stack:
        storage = _storage(kind, stack)
        apps = {
            strategy: _application(storage, strategy)
            for strategy in ("fixed-window", "moving-window")
        }

        def start(status: str, headers: Any, error: Any = None) -> None:
            assert status == "200 OK", status

        while True:
            sample: Sample = {}
            for strategy, app in apps.items():
                environs = [_environ(f"/{number % CUSTOMERS}") for number in range(count)]
                watch.start()
                for environ in environs:
                    b"".join(app(environ, start))
                sample[f"{strategy}, ns"] = watch.ns_each(count)
            yield sample


def _hits_wheel(stack: ExitStack) -> tuple[Any, Any]:
    name = stack.enter_context(wheeld.embedded(capacity=1_000_000))
    limit = wheeld_client.RateLimit(
        stack.enter_context(wheeld_client.connect(name)), "bench", MOST, 60.0
    )
    take = limit.try_acquire

    def one(count: int) -> None:
        for _ in range(count):
            take()

    def several(keys: list[str]) -> None:
        for key in keys:
            take(key=key)

    return one, several


def _hits_storage(kind: str, stack: ExitStack) -> tuple[Any, Any]:
    from limits.storage import storage_from_string
    from limits.strategies import FixedWindowRateLimiter

    from limits import RateLimitItemPerMinute

    limiter = FixedWindowRateLimiter(storage_from_string(_storage(kind, stack)))
    item, hit = RateLimitItemPerMinute(MOST), limiter.hit

    def one(count: int) -> None:
        for _ in range(count):
            hit(item, "all")

    def several(keys: list[str]) -> None:
        for key in keys:
            hit(item, key)

    return one, several


def hits(kind: str, quick: bool) -> Iterator[Sample]:
    """Of one key, and of keys drawn of 100,000 that were all used before."""
    count = 200 if quick else 20_000 if kind == "wheeld" else 2_000
    keys = [f"customer:{number:07d}" for number in range(1_000 if quick else KEYS)]
    rng, watch = np.random.default_rng(1), Watch()
    with ExitStack() as stack:
        one, several = (
            _hits_wheel(stack) if kind == "wheeld" else _hits_storage(kind.partition(" ")[2], stack)
        )
        several(keys)
        while True:
            watch.start()
            one(count)
            sample = {"one key, ns": watch.ns_each(count)}
            drawn = [keys[at] for at in rng.integers(0, len(keys), count).tolist()]
            watch.start()
            several(drawn)
            yield {**sample, "many keys, ns": watch.ns_each(count)}


HITS = {kind: partial(hits, kind) for kind in ("wheeld", "limits memory", "limits Redis")}
CONTENDERS = {
    {"memory": "memory://", "Redis": "redis://"}.get(kind, kind): partial(requests, kind)
    for kind in ("wheeld", "memory", "Redis")
}
