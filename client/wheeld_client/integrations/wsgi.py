"""Gives requests of WSGI applications a time limit: Flask, Django, Pyramid under gunicorn, uWSGI.

app = TimeoutMiddleware(app, 2.0)

gunicorn's own timeout kills a sync worker and everything else that it was doing; this one ends only
the request, answers 504, and the worker continues.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Any, TypeAlias, Unpack

from wheeld_client.connection.options import ConnectKeywords
from wheeld_client.integrations.gunicorn import connected
from wheeld_client.integrations.limit import Limit, RequestTimeout, cut_off, in_time
from wheeld_client.integrations.process import ProcessTimers
from wheeld_client.integrations.seconds import limits_of
from wheeld_core.arguments import Seconds

Environ: TypeAlias = dict[str, Any]
Start: TypeAlias = Callable[..., Any]
Application: TypeAlias = Callable[[Environ, Start], Iterable[bytes]]


class TimeoutMiddleware:
    """Ends requests that take too long, and answers them with 504.

    The code of the request gets the exception `RequestTimeout`, which no `except Exception`
    catches. In a worker that serves in its main thread (gunicorn's sync workers), and under gevent,
    it comes at once, whatever the request waits for; in another thread (gthread), as soon as that
    runs Python code. The limit applies to the response: a streamed one is cut off when its time is
    up, between two parts or while a part is made. While no daemon runs, requests have no limit; a
    warning in the log says so.

    Parameters
    ----------
    app : WSGI application
        Whose requests they are.
    seconds : float, None, or callable
        Time for a request; None: without limit. A function is called with its environ.
    daemon : str, optional
        Name of the daemon, or the path of its runtime directory. Default: the connection of
        gunicorn's hook `connect_worker`, or else one to "default".
    **options
        As in `connect`, except `after_fork` and `on_reconnect`.
    """

    def __init__(
        self,
        app: Application,
        seconds: Seconds | Callable[[Environ], Seconds | None] | None = 30.0,
        daemon: str | ProcessTimers | None = None,
        **options: Unpack[ConnectKeywords],
    ) -> None:
        self.app = app
        self._seconds = limits_of(seconds)
        if daemon is None:
            daemon = "default" if options else connected() or "default"
        if not isinstance(daemon, ProcessTimers):
            daemon = ProcessTimers(daemon, **options)
        self.process = daemon

    def __call__(self, environ: Environ, start_response: Start) -> Iterable[bytes]:
        seconds = self._seconds(environ)
        timers = self.process.find() if seconds is not None else None
        if timers is None or seconds is None:
            return self.app(environ, start_response)
        until = time.monotonic() + seconds
        started = begun = False
        limit, body = Limit(timers, seconds), None

        def start(*args: Any, **kwargs: Any) -> Any:
            nonlocal started
            started = True
            write = start_response(*args, **kwargs)

            def begin(part: bytes) -> Any:
                nonlocal begun
                begun = True
                return write(part)

            return begin

        try:
            with limit:
                body = self.app(environ, start)
                if _is_whole(body, environ):
                    return body
                parts = iter(body)
                first = list(islice(parts, 1))
            return _Body(chain(first, in_time(parts, self.process, seconds, until)), body)
        except RequestTimeout:
            _close(body)
            if not limit.due:  # of a limit around this one, which answers
                raise
            if begun:
                raise cut_off(seconds) from None
            text = f"the request took longer than {seconds:g} s\n".encode()
            headers = [("Content-Type", "text/plain"), ("Content-Length", str(len(text)))]
            # an error is given to replace a response; else test clients of werkzeug raise it
            replaced = (sys.exc_info(),) if started else ()
            start_response("504 Gateway Timeout", headers, *replaced)
            return [text]
        except BaseException:
            _close(body)
            raise


def _is_whole(body: Iterable[bytes], environ: Environ) -> bool:
    wrapper = environ.get("wsgi.file_wrapper")
    return isinstance(body, (list, tuple, *((wrapper,) if isinstance(wrapper, type) else ())))


def _close(body: Any) -> None:
    if hasattr(body, "close"):
        body.close()


class _Body:
    """A response whose first part was made in time; the server sends the rest."""

    def __init__(self, parts: Iterator[bytes], body: Iterable[bytes]) -> None:
        self._parts, self._body = parts, body

    def __iter__(self) -> Iterator[bytes]:
        return self._parts

    def close(self) -> None:
        _close(self._body)
