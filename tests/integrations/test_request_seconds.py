"""Limits of requests that are wrong are refused when the application is made."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from aiohttp import web
from django.conf import settings
from flask import Flask

import wheeld
from wheeld_client.integrations import aiohttp, asgi, fastapi, wsgi
from wheeld_client.integrations.flask import Wheeld
from wheeld_client.integrations.seconds import limits_of

if not settings.configured:
    settings.configure()


def _flask(seconds: Any) -> None:
    app = Flask("shop")
    app.config["WHEELD_TIMEOUT"] = seconds
    Wheeld(app)


def _django(seconds: Any) -> None:
    from django.test import override_settings

    from wheeld_client.integrations.django import TimeoutMiddleware

    with override_settings(WHEELD={"timeout": seconds}):
        TimeoutMiddleware(lambda request: request)  # type: ignore[arg-type, return-value]


MADE: dict[str, Callable[[Any], object]] = {
    "asgi": lambda seconds: asgi.DeadlineMiddleware(lambda *_: None, seconds),  # type: ignore[arg-type, return-value]
    "wsgi": lambda seconds: wsgi.TimeoutMiddleware(lambda *_: [], seconds),
    "fastapi": fastapi.deadline,
    "aiohttp": lambda seconds: aiohttp.setup(web.Application(), seconds),
    "flask": _flask,
    "django": _django,
}


@pytest.mark.parametrize("framework", MADE)
@pytest.mark.parametrize("seconds", [-1, math.nan, "2s"], ids=str)
def test_refused(framework: str, seconds: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=f"{seconds!r}: expected seconds"):
        MADE[framework](seconds)


@pytest.mark.parametrize("framework", MADE)
@pytest.mark.parametrize("seconds", [None, math.inf, 0, 2, 1e30], ids=str)
def test_taken(framework: str, seconds: Any) -> None:
    MADE[framework](seconds)


def test_a_function_is_asked_for_each_request() -> None:
    limit = limits_of({"a": 2, "b": None, "c": -0.5, "d": math.inf, "e": "2s"}.get)  # type: ignore[arg-type]
    assert [limit(request) for request in "abcd"] == [2.0, None, 0.0, None]
    with pytest.raises(TypeError, match="'2s': expected seconds"):
        limit("e")


def test_flasks_test_client_gets_the_answer(wheel_server: wheeld.ForkServer) -> None:
    """It raises each error that comes with a response, even if there was none before."""
    with wheel_server.embedded(capacity=256) as daemon:
        app = Flask("shop")
        app.config.update(WHEELD_DAEMON=str(daemon), WHEELD_TIMEOUT=timedelta(milliseconds=20))
        wheel = Wheeld(app)
        app.add_url_rule("/slow", view_func=lambda: time.sleep(3600.0))
        app.add_url_rule("/quick", "quick", lambda: "done")
        client = app.test_client()
        for _ in range(2):
            answer = client.get("/slow")
            assert (answer.status_code, answer.text) == (
                504,
                "the request took longer than 0.02 s\n",
            )
        with app.app_context():
            wheel.timers.close()
