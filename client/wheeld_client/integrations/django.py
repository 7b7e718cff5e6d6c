"""A Django middleware: requests have a time limit.

    MIDDLEWARE = ["wheeld_client.integrations.django.TimeoutMiddleware", ...]
    WHEELD = {"timeout": 2.0, "daemon": "default"}  # seconds; the default is 30, None is no limit

Views reach this process's timers by `timers()`. Under ASGI wrap the application instead:
`DeadlineMiddleware(get_asgi_application(), 2.0)` of `wheeld_client.integrations.asgi` cancels.

    INSTALLED_APPS = ["wheeld_client.integrations.django.JobsConfig", ...]
    WHEELD = {"jobs": "shop.work:jobs"}

has each process of the server run jobs.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.http import FileResponse, HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase

from wheeld_client.integrations.limit import Limit, RequestTimeout, in_time
from wheeld_client.integrations.process import ProcessTimers, jobs_of
from wheeld_client.integrations.seconds import limit_of
from wheeld_client.timers.timers import Timers


def _setting(name: str, default: Any) -> Any:
    return getattr(settings, "WHEELD", {}).get(name, default)


def _timeout() -> float | None:
    return limit_of(_setting("timeout", 30.0), "WHEELD['timeout']")


@cache
def _process() -> ProcessTimers:
    return ProcessTimers(_setting("daemon", "default"), **_setting("options", {}))


def timers() -> Timers:
    """This process's worker, whose callbacks a thread dispatches; errors as in `connect`."""
    return _process().get()


class JobsConfig(AppConfig):
    """An application of Django: each process that serves runs the jobs of the setting
    `WHEELD["jobs"]`, from its start, without a request.

    Commands of `manage.py` do not, except `runserver`. A server that loads the application and
    then forks (gunicorn's `preload_app`) needs its own hook instead.
    """

    name, label, verbose_name = __name__, "wheeld", "wheeld"

    def ready(self) -> None:
        jobs = _setting("jobs", None)
        if jobs is None:
            raise ImproperlyConfigured("JobsConfig needs WHEELD = {'jobs': 'module:name'}")
        if _serves(sys.argv):
            jobs_of(jobs).start()


def _serves(words: list[str]) -> bool:
    """Whether this process is a server, not a command of `manage.py`."""
    program = Path(words[0]).name if words else ""
    if program == "__main__.py":
        program = Path(words[0]).parent.name
    if program not in ("manage.py", "django-admin", "django"):
        return True
    if "runserver" not in words[1:2]:
        return False
    return "--noreload" in words or os.environ.get("RUN_MAIN") == "true"  # not its watcher


class TimeoutMiddleware:
    """Ends requests that take too long, and answers them with 504; see `RequestTimeout`.

    Streamed responses are cut off when their time is up, except files and asynchronous ones.

    The setting `WHEELD` is a dict of `timeout`, `daemon`, and `options`, which are those of
    `connect`. Put it first, so that it limits what the others do.
    """

    sync_capable, async_capable = True, False

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self._respond = get_response
        _timeout()  # a wrong one is an error now, not of the first request

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        seconds = _timeout()
        connected = _process().find() if seconds is not None else None
        if connected is None or seconds is None:
            return self._respond(request)
        until = time.monotonic() + seconds
        limit = Limit(connected, seconds)
        try:
            with limit:
                response = self._respond(request)
        except RequestTimeout:
            if not limit.due:  # of a limit around this one, which answers
                raise
            text = f"the request took longer than {seconds:g} s\n"
            return HttpResponse(text, status=504, content_type="text/plain")
        if isinstance(response, StreamingHttpResponse) and not (
            response.is_async or isinstance(response, FileResponse)
        ):
            parts = iter(response.streaming_content)
            response.streaming_content = in_time(parts, _process(), seconds, until)
        return response
