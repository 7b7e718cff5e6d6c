"""Requests of WSGI applications have a time limit: Flask, Django, Pyramid under gunicorn, uWSGI.

app = TimeoutMiddleware(app, 2.0)

gunicorn's own timeout kills a sync worker and everything else that it was doing; this one ends only
the request, answers 504, and the worker goes on.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias

from wheeld_client.integrations.limit import Limit, RequestTimeout
from wheeld_client.integrations.process import ProcessTimers
from wheeld_client.integrations.seconds import limits_of

Environ: TypeAlias = dict[str, Any]
Start: TypeAlias = Callable[..., Any]
Application: TypeAlias = Callable[[Environ, Start], Iterable[bytes]]


class TimeoutMiddleware:
    """Ends requests that take too long, and answers them with 504.

    In the code of the request that is the exception `RequestTimeout`, which no `except Exception`
    catches. In a worker that serves in its main thread (gunicorn's sync workers) it comes at once,
    whatever the request waits for; in a thread of its own (gthread) when it runs Python code; under
    gevent at once. While no daemon runs, requests have no limit; a warning in the log says so.

    Parameters
    ----------
    app : WSGI application
        Whose requests they are.
    seconds : float, None, or callable
        Time for a request; None: without limit. A function is called with its environ.
    daemon : str or ProcessTimers
        Name of the daemon, or the path of its runtime directory; or a connection to share.
    **options
        As of `ProcessTimers`.
    """

    def __init__(
        self,
        app: Application,
        seconds: float | Callable[[Environ], float | None] | None = 30.0,
        daemon: str | ProcessTimers = "default",
        **options: Any,
    ) -> None:
        self.app = app
        self._seconds = limits_of(seconds)
        if not isinstance(daemon, ProcessTimers):
            daemon = ProcessTimers(daemon, **options)
        self.process = daemon

    def __call__(self, environ: Environ, start_response: Start) -> Iterable[bytes]:
        """Serve one request."""
        seconds = self._seconds(environ)
        limit = self._limit(seconds)
        try:
            with limit:
                body = self.app(environ, start_response)
                if isinstance(body, list | tuple):
                    return body
                try:
                    return _Body([next(chunks := iter(body))], chunks, body)
                except StopIteration:
                    return _Body([], iter(()), body)
        except RequestTimeout:
            text = f"the request took longer than {seconds:g} s\n".encode()
            headers = [("Content-Type", "text/plain"), ("Content-Length", str(len(text)))]
            start_response("504 Gateway Timeout", headers, sys.exc_info())
            return [text]

    def _limit(self, seconds: float | None) -> AbstractContextManager[object]:
        timers = self.process.find() if seconds is not None else None
        if timers is None or seconds is None:
            return nullcontext()
        return Limit(timers, seconds)


class _Body:
    """A response whose first part was made within the limit; the server sends the rest."""

    def __init__(self, first: list[bytes], rest: Iterator[bytes], body: Iterable[bytes]) -> None:
        self._first, self._rest, self._body = first, rest, body

    def __iter__(self) -> Iterator[bytes]:
        yield from self._first
        yield from self._rest

    def close(self) -> None:
        """Close the application's, as the server wants it."""
        if hasattr(self._body, "close"):
            self._body.close()
