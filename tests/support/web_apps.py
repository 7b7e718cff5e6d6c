"""Applications with a request that is quick and one that takes for ever, for each framework.

gunicorn and uvicorn load them by name; $WHEELD_TEST_DAEMON is the daemon's runtime directory.
Applications of WSGI run on a virtual clock, which only a slow request moves: a busy machine ends no
other.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from typing import Any

import wheeld

LIMIT = 60.0
FOR_EVER = 3600.0


def daemon() -> str:
    return os.environ["WHEELD_TEST_DAEMON"]


def time_runs_out() -> None:
    """Move the virtual clock past the limit while this thread goes on, and waits."""
    threading.Thread(target=wheeld.advance, args=(daemon(), LIMIT)).start()


def wsgi_app(shared: bool = False) -> Any:
    from wheeld_client.integrations.wsgi import TimeoutMiddleware

    def app(environ: dict[str, Any], start: Any) -> list[bytes]:
        path = environ["PATH_INFO"]
        if path != "/quick":
            time_runs_out()
        try:
            if path == "/sleep":
                time.sleep(FOR_EVER)
            elif path == "/socket":
                ends = socket.socketpair()
                ends[0].recv(1)
            elif path == "/code":
                while True:
                    sum(range(1000))
        except Exception:
            path = "/swallowed"
        start("200 OK", [("Content-Type", "text/plain")])
        return [f"{os.getpid()} {path}".encode()]

    return TimeoutMiddleware(app, LIMIT, None if shared else daemon())


def _parts() -> Any:
    yield b"first"
    yield b"second"
    time_runs_out()
    while True:
        time.sleep(0.001)  # under gthread it is ended between these


def stream_app() -> Any:
    from wheeld_client.integrations.wsgi import TimeoutMiddleware

    def app(environ: dict[str, Any], start: Any) -> Any:
        start("200 OK", [("Content-Type", "text/plain")])
        return _parts() if environ["PATH_INFO"] == "/stream" else [str(os.getpid()).encode()]

    return TimeoutMiddleware(app, LIMIT, daemon())


def flask_app() -> Any:
    from flask import Flask

    from wheeld_client.integrations.flask import Wheeld

    app, wheel = Flask(__name__), Wheeld()
    app.config.update(WHEELD_TIMEOUT=LIMIT, WHEELD_DAEMON=daemon())
    wheel.init_app(app)

    @app.get("/quick")
    def quick() -> str:
        return wheel.timers.worker

    @app.get("/sleep")
    def slow() -> str:
        time_runs_out()
        time.sleep(FOR_EVER)
        return "never"

    return app


def django_app() -> Any:
    import django
    from django.conf import settings
    from django.core.wsgi import get_wsgi_application
    from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
    from django.urls import path

    from wheeld_client.integrations.django import timers

    def quick(request: HttpRequest) -> HttpResponse:
        return HttpResponse(timers().worker)

    def slow(request: HttpRequest) -> HttpResponse:
        time_runs_out()
        time.sleep(FOR_EVER)
        return HttpResponse("never")

    def stream(request: HttpRequest) -> StreamingHttpResponse:
        return StreamingHttpResponse(_parts())

    urls = [path("quick", quick), path("sleep", slow), path("stream", stream)]
    settings.configure(
        ALLOWED_HOSTS=["*"],
        ROOT_URLCONF=type("urls", (), {"urlpatterns": urls}),
        MIDDLEWARE=["wheeld_client.integrations.django.TimeoutMiddleware"],
        WHEELD={"timeout": LIMIT, "daemon": daemon()},
    )
    django.setup()
    return get_wsgi_application()
