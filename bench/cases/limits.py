"""Requests of an application of Flask with flask-limiter, on each of its storages.

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

import wheeld
from bench.cases import servers
from bench.processes import Sample, Watch

CUSTOMERS = 1_000
LIMIT = "60000/minute"
"""More than is asked for: each request is answered."""


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
    try:
        import flask_limiter  # noqa: F401
    except ImportError:
        raise servers.Missing("flask-limiter is not installed") from None
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


CONTENDERS = {
    {"memory": "memory://", "Redis": "redis://"}.get(kind, kind): partial(requests, kind)
    for kind in ("wheeld", "memory", "Redis")
}
