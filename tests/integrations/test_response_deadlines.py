"""A deadline is for the response, and what limits a request keeps the protocol that it wraps."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from wsgiref.util import FileWrapper

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer
from fastapi import BackgroundTasks, Depends, FastAPI
from starlette.applications import Starlette

import web_server
import wheeld
from daemons import LONG, until
from wheeld_client import AsyncTimers, Observer, connect
from wheeld_client.integrations import celery, gunicorn, limit, wsgi
from wheeld_client.integrations.aiohttp import TIMERS, setup
from wheeld_client.integrations.asgi import DeadlineMiddleware
from wheeld_client.integrations.fastapi import deadline, lifespan
from wheeld_client.integrations.limit import Limit, RequestTimeout
from wheeld_client.integrations.process import ProcessTimers
from wheeld_client.integrations.wsgi import TimeoutMiddleware
from wheeld_testing import Wheel, wheel_fixture

LIMIT = 60.0
"""Of virtual time: no busy machine ends what has not run out of it."""
FOR_EVER = 3600.0

wheel = wheel_fixture(capacity=256)


@pytest.fixture
def daemon(wheel_server: wheeld.ForkServer) -> Iterator[Any]:
    with wheel_server.embedded(capacity=256, max_workers=16, virtual_clock=True) as daemon:
        yield daemon


@pytest.fixture
def time_runs_out(daemon: Any) -> Iterator[Callable[[], object]]:
    """Moves the time past the limit while the caller goes on, and waits."""
    with ThreadPoolExecutor(1) as another:
        yield lambda: another.submit(daemon.advance, LIMIT)


# -- ASGI ---------------------------------------------------------------------------------------

BODY = {"type": "http.response.body", "body": b"x"}
START = {"type": "http.response.start", "status": 200, "headers": []}
TRAILERS = {"type": "http.response.trailers", "headers": []}
COMPLETE = {
    "body": [START, BODY],
    "parts": [START, {**BODY, "more_body": True}, BODY],
    "file": [START, {"type": "http.response.pathsend", "path": "/x"}],
    "trailers": [{**START, "trailers": True}, BODY, TRAILERS],
}
BEGUN = {
    "nothing": [],
    "head": [START],
    "part": [START, {**BODY, "more_body": True}],
    "no trailers": [{**START, "trailers": True}, BODY],
    "some trailers": [{**START, "trailers": True}, BODY, {**TRAILERS, "more_trailers": True}],
}


async def _served(
    app: Any, wheel: Wheel, kind: str = "http", layers: int = 1, daemon: str | None = None
) -> tuple[Any, Any]:
    """The parts that are sent until an hour has passed, and how the response ends."""
    sent: list[Any] = []
    wrapped = [app]
    for _ in range(layers):
        wrapped.append(DeadlineMiddleware(wrapped[-1], LIMIT, daemon or wheel))

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": kind, "method": "GET", "path": "/", "headers": []}
    serving = asyncio.ensure_future(wrapped[-1](scope, receive, send))
    try:
        await wheel.advance(FOR_EVER)
        await serving
    except BaseException as error:
        return sent, type(error)
    finally:
        for one in wrapped[1:]:
            await one._leave()
    return sent, None


def _sends(messages: list[Any], seconds: float) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        for message in messages:
            await send(message)
        await asyncio.sleep(seconds)

    return app


@pytest.mark.parametrize("where", ["daemon", "asyncio"])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("shape", COMPLETE)
async def test_behind_a_complete_response(
    wheel: Wheel, shape: str, layers: int, where: str
) -> None:
    app = _sends(COMPLETE[shape], 2 * LIMIT)
    place = None if where == "daemon" else "/nowhere"
    assert await _served(app, wheel, layers=layers, daemon=place) == (COMPLETE[shape], None)


@pytest.mark.parametrize("shape", BEGUN)
async def test_before_it_is_complete(wheel: Wheel, shape: str) -> None:
    sent, ended = await _served(_sends(BEGUN[shape], FOR_EVER), wheel)
    if BEGUN[shape]:
        assert (sent, ended) == (BEGUN[shape], TimeoutError)
    else:
        assert (sent[0]["status"], len(sent), ended) == (504, 2, None)


async def test_web_sockets_have_no_deadline(wheel: Wheel) -> None:
    accept = [{"type": "websocket.accept"}]
    assert await _served(_sends(accept, 2 * LIMIT), wheel, "websocket") == (accept, None)


async def test_background_tasks_behind_a_dependency(wheel: Wheel) -> None:
    ran: list[str] = []
    begun = asyncio.Event()

    async def mail() -> None:
        begun.set()
        await asyncio.sleep(2 * LIMIT)
        ran.append("mail")

    app = FastAPI(lifespan=lifespan(str(wheel), worker="api"))

    @app.get("/", dependencies=[Depends(deadline(LIMIT))])
    async def page(tasks: BackgroundTasks) -> str:
        tasks.add_task(mail)
        return "thank you"

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    scope: Any = {
        "type": "http", "method": "GET", "path": "/", "raw_path": b"/", "headers": [],
        "query_string": b"", "root_path": "", "http_version": "1.1", "scheme": "http",
    }  # fmt: skip
    with connect(wheel, worker="api"):  # a second service of the same name
        async with app.router.lifespan_context(app) as state:
            serving = asyncio.ensure_future(
                app({**scope, "state": dict(state or {})}, receive, send)
            )
            await begun.wait()
            await wheel.advance(3 * LIMIT)
            await serving
    assert sent[0]["status"] == 200
    assert ran == ["mail"]


# -- WSGI ---------------------------------------------------------------------------------------


class Body:
    """An iterable that counts its ends."""

    def __init__(self, *parts: Callable[[], bytes]) -> None:
        self._parts, self.closed = iter(parts), 0

    def __iter__(self) -> Body:
        return self

    def __next__(self) -> bytes:
        return next(self._parts)()

    def close(self) -> None:
        self.closed += 1


def _slow() -> bytes:
    time.sleep(FOR_EVER)
    return b"never"


def _wrong() -> bytes:
    raise ValueError("a bug in the application")


def _slow_in_python() -> bytes:
    while True:
        time.sleep(0.001)


def _serve(app: Any, write: bool = False) -> tuple[list[Any], bytes, Any]:
    heads: list[Any] = []
    got: list[bytes] = []

    def start(status: str, headers: Any, exc_info: Any = None) -> Any:
        if exc_info and got:
            raise exc_info[1]
        heads.append(status)
        return got.append

    result, error = None, None
    try:
        result = app({"wsgi.file_wrapper": FileWrapper}, start)
        got.extend(result)
    except BaseException as raised:
        error = type(raised)
    finally:
        if hasattr(result, "close"):
            result.close()
    return heads, b"".join(got), error


FINE: Callable[[], bytes] = lambda: b"part"  # noqa: E731
SLOW: Callable[[], bytes] = lambda: b"never"  # noqa: E731
ENDS: dict[str, tuple[Any, Any]] = {
    "complete": ((FINE, FINE), (["200 OK"], b"partpart", None)),
    "empty": ((), (["200 OK"], b"", None)),
    "first slow": ((SLOW,), (["200 OK", "504 Gateway Timeout"], None, None)),
    "first wrong": ((_wrong,), (["200 OK"], b"", ValueError)),
    "later slow": ((FINE, SLOW), (["200 OK"], b"part", RuntimeError)),
    "later wrong": ((FINE, _wrong), (["200 OK"], b"part", ValueError)),
}


@pytest.mark.parametrize("thread", ["main", "other"])
@pytest.mark.parametrize("case", ENDS)
def test_close_is_called_once(
    daemon: Any, case: str, thread: str, time_runs_out: Callable[[], object]
) -> None:
    def slow() -> bytes:
        time_runs_out()
        return _slow_in_python() if thread == "other" else _slow()

    parts, expected = ENDS[case]
    body = Body(*(slow if part is SLOW else part for part in parts))

    def app(environ: Any, start: Any) -> Any:
        start("200 OK", [])
        return body

    limited = TimeoutMiddleware(app, LIMIT, daemon)
    found: list[Any] = []
    serve = lambda: found.append(_serve(limited))  # noqa: E731
    if thread == "main":
        serve()
    else:
        worker = threading.Thread(target=serve)
        worker.start()
        worker.join(LONG)
    limited.process.close()
    ((heads, got, error),) = found
    assert (heads, error) == (expected[0], expected[2])
    assert expected[1] in (got, None)
    assert body.closed == 1


def test_a_body_that_is_made_slowly_in_many_parts(
    daemon: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    for module in (wsgi, limit):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))

    def parts() -> Iterator[bytes]:
        nonlocal now
        for _ in itertools.count():
            now += LIMIT / 10
            yield b"."

    def app(environ: Any, start: Any) -> Any:
        start("200 OK", [])
        return parts()

    limited = TimeoutMiddleware(app, LIMIT, daemon)
    assert _serve(limited) == (["200 OK"], b"." * 10, RuntimeError)
    limited.process.close()


def test_write_has_begun_the_response(daemon: Any, time_runs_out: Callable[[], object]) -> None:
    def app(environ: Any, start: Any) -> Any:
        start("200 OK", [])(b"part")
        time_runs_out()
        return [_slow()]

    limited = TimeoutMiddleware(app, LIMIT, daemon)
    assert _serve(limited) == (["200 OK"], b"part", RuntimeError)
    limited.process.close()


def test_whose_limit_is_over_answers(daemon: Any, time_runs_out: Callable[[], object]) -> None:
    def app(environ: Any, start: Any) -> Any:
        time_runs_out()
        return [_slow()]

    within = TimeoutMiddleware(app, 2 * LIMIT, daemon)
    limited = TimeoutMiddleware(within, LIMIT, daemon)
    assert f"longer than {LIMIT:g} s" in _serve(limited)[1].decode()
    for each in (limited, within):
        each.process.close()


@pytest.mark.parametrize("kind", [list, tuple, lambda x: FileWrapper(open(os.devnull, "rb"))])  # noqa: SIM115
def test_what_servers_treat_otherwise_stays_what_it_is(daemon: Any, kind: Any) -> None:
    body = kind([b"x"])
    limited = TimeoutMiddleware(lambda *_: body, LIMIT, daemon)
    assert limited({"wsgi.file_wrapper": FileWrapper}, lambda *_: None) is body
    limited.process.close()
    getattr(body, "close", lambda: None)()


def test_an_alarm_is_the_views_own(daemon: Any, time_runs_out: Callable[[], object]) -> None:
    alarms: list[int] = []

    def ring(number: int, frame: object) -> None:
        alarms.append(number)
        time_runs_out()

    before = signal.signal(signal.SIGALRM, lambda number, _: alarms.append(number))
    try:
        with connect(daemon) as timers, timers.dispatching():
            with pytest.raises(RequestTimeout), Limit(timers, LIMIT):  # noqa: PT012
                signal.signal(signal.SIGALRM, ring)
                signal.setitimer(signal.ITIMER_REAL, 0.001)
                time.sleep(FOR_EVER)
            assert alarms == [signal.SIGALRM]
            with pytest.raises(RequestTimeout), Limit(timers, LIMIT):  # noqa: PT012
                for number in range(signal.SIGRTMIN, signal.SIGRTMAX + 1):
                    signal.signal(number, lambda number, _: alarms.append(number))
                time_runs_out()
                _slow_in_python()
            assert alarms == [signal.SIGALRM]
    finally:
        signal.signal(signal.SIGALRM, before)
        for number in range(signal.SIGRTMIN, signal.SIGRTMAX + 1):
            signal.signal(number, signal.SIG_DFL)


@pytest.mark.parametrize("kind", ["sync", "gthread", "gevent"])
def test_a_stream_is_cut_off_under_gunicorn(daemon: Any, tmp_path: Path, kind: str) -> None:
    options = ["--worker-class", kind, *(["--threads", "2"] if kind == "gthread" else [])]
    log = tmp_path / "log"
    with web_server.gunicorn("web_apps:stream_app()", str(daemon), *options, log=log) as server:
        first = server.get("/quick")
        with pytest.raises(web_server.http.client.IncompleteRead):
            server.get("/stream")
        assert server.get("/quick") == first


def test_a_stream_of_django(daemon: Any, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with web_server.gunicorn("web_apps:django_app()", str(daemon), log=log) as server:
        first = server.get("/quick")
        with pytest.raises(web_server.http.client.IncompleteRead):
            server.get("/stream")
        assert server.get("/quick") == first


# -- aiohttp ------------------------------------------------------------------------------------


BEHIND = web.AppKey("behind", list)
THERE = web.AppKey("there", asyncio.Event)
"""The handler waits for time to pass."""


async def _pass(request: web.Request, seconds: float) -> None:
    request.app[THERE].set()
    await asyncio.sleep(seconds)


async def _socket(request: web.Request) -> web.StreamResponse:
    answer = web.WebSocketResponse()
    await answer.prepare(request)
    async for message in answer:
        await _pass(request, 2 * LIMIT)
        await answer.send_str(message.data)
    return answer


async def _stream(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse()
    if "length" in request.query:
        answer.content_length = 1000
    await answer.prepare(request)
    if "empty" not in request.query:
        await answer.write(b"line\n")
    await _pass(request, FOR_EVER)
    return answer


async def _behind(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse()
    await answer.prepare(request)
    await answer.write_eof(b"done")
    await _pass(request, 2 * LIMIT)
    request.app[BEHIND].append("ran")
    return answer


async def _file(request: web.Request) -> web.StreamResponse:
    return web.FileResponse(__file__)


async def _behind_file(request: web.Request) -> web.StreamResponse:
    answer = web.FileResponse(__file__)
    await answer.prepare(request)
    await _pass(request, 2 * LIMIT)
    request.app[BEHIND].append("ran")
    return answer


async def test_aiohttp(wheel: Wheel) -> None:
    app = web.Application()
    app[BEHIND], there = [], asyncio.Event()
    app[THERE] = there
    for handler in (_socket, _stream, _behind, _file):
        app.router.add_get(f"/{handler.__name__[1:]}", handler)
    setup(app, LIMIT, str(wheel), worker="web")

    async def pass_by(seconds: float) -> None:
        await there.wait()
        there.clear()
        await wheel.advance(seconds)

    with connect(wheel, worker="web"):
        async with TestServer(app) as server, ClientSession() as client:
            assert app[TIMERS].timers.worker.startswith("web-")
            async with client.ws_connect(server.make_url("/socket")) as ws:
                await ws.send_str("still there")
                await pass_by(3 * LIMIT)
                assert (await ws.receive()).data == "still there"
            for path in ("/stream", "/stream?length", "/stream?empty", "/stream?length&empty"):
                reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
                writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
                await pass_by(LIMIT)
                got = await reader.read()
                assert got.count(b"HTTP/1.1 200") == 1
                assert got.count(b"HTTP/1.1") == 1
                assert not got.endswith(b"0\r\n\r\n")
                writer.close()
            for path in ("/behind", "/file"):
                async with client.get(server.make_url(path)) as answer:
                    assert answer.status == 200
                    await answer.read()
                if path == "/behind":
                    await pass_by(3 * LIMIT)
            assert app[BEHIND] == ["ran"]


async def test_work_behind_files_and_in_mounted_applications(wheel: Wheel) -> None:
    app, mounted = web.Application(), web.Application()
    there, behind = asyncio.Event(), list[str]()
    for each in (app, mounted):
        each[BEHIND], each[THERE] = behind, there
        setup(each, LIMIT, str(wheel))
        for handler in (_behind, _behind_file):
            each.router.add_get(f"/{handler.__name__[1:]}", handler)
    app.add_subapp("/in", mounted)
    async with TestServer(app) as server, ClientSession() as client:
        for path in ("/behind_file", "/in/behind", "/in/behind_file"):
            async with client.get(server.make_url(path)) as answer:
                await answer.read()
                await there.wait()
                there.clear()
                await wheel.advance(3 * LIMIT)
                await asyncio.to_thread(until, lambda: behind, "the work behind it")
                behind.clear()


# -- names --------------------------------------------------------------------------------------


async def _by_asgi(daemon: Any) -> str:
    app = DeadlineMiddleware(Starlette(), LIMIT, daemon, worker="web")
    timers = await app._connect()
    assert timers is not None
    name = timers.timers.worker
    await app._leave()
    return name


async def _by_process(daemon: Any) -> str:
    process = ProcessTimers(daemon, worker="web")
    name = process.get().worker
    process.close()
    return name


async def _by_gunicorn(daemon: Any) -> str:
    gunicorn.connect_worker(str(daemon), worker="web")(None, SimpleNamespace(age=1))
    name = gunicorn.timers().worker
    gunicorn.leave_worker(None, None)
    return name


async def _by_celery(daemon: Any) -> str:
    app: Any = celery.Celery("shop", broker="memory://", set_as_current=False)
    celery.install(app, str(daemon), worker="web")
    sender = celery.Sender(None)
    with Observer(daemon) as observer:
        before = set(observer.workers())
        sender.start(SimpleNamespace(app=app))
        (name,) = until(lambda: set(observer.workers()) - before, "the sender")
        sender.stop(None)
    return str(name)


@pytest.mark.parametrize("by", [_by_asgi, _by_process, _by_gunicorn, _by_celery])
async def test_a_name_in_use(daemon: Any, by: Any) -> None:
    assert await by(daemon) == "web"
    with connect(daemon, worker="web"):
        assert (await by(daemon)).startswith("web-")


def test_a_process_without_room_for_a_thread(daemon: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    process = ProcessTimers(daemon, worker="web")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", _no_thread)
        with pytest.raises(RuntimeError, match="new thread"):
            process.get()
    assert process.get().worker == "web"
    process.close()


def _no_thread(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


async def test_loops_that_are_closed_are_left_once(daemon: Any) -> None:
    closed = [asyncio.new_event_loop() for _ in range(3)]
    app = DeadlineMiddleware(Starlette(), LIMIT, daemon)
    timers = await AsyncTimers(daemon).__aenter__()
    await timers.__aexit__(None, None, None)
    for loop in closed:
        loop.close()
        app._connecting[loop] = asyncio.get_running_loop().create_future()
        app._timers[loop] = timers
    await asyncio.gather(app._leave_closed(), app._leave_closed())
    assert not app._connecting
    assert not app._timers


def test_two_services_and_an_upgrade_on_the_fly(daemon: Any, tmp_path: Path) -> None:
    conf = tmp_path / "conf.py"
    conf.write_text(f"""
from wheeld_client.integrations.gunicorn import connect_worker, leave_worker
post_fork = connect_worker({str(daemon)!r}, worker="web-{{age}}", group="web")
worker_exit = leave_worker
""")
    with Observer(daemon) as observer, ExitStack() as stack:
        for number in range(2):
            log = tmp_path / f"log-{number}"
            options = ("--config", str(conf), "--pid", str(tmp_path / f"pid-{number}"))
            stack.enter_context(
                web_server.gunicorn("web_apps:wsgi_app()", str(daemon), *options, log=log)
            )
            until(lambda: len(observer.workers()) == number + 1, "a worker")  # noqa: B023
        os.kill(int((tmp_path / "pid-0").read_text()), signal.SIGUSR2)
        second = tmp_path / "pid-0.2"
        until(lambda: second.exists() and len(observer.workers()) == 3, "the new master's worker")
        os.kill(int(second.read_text()), signal.SIGTERM)
        until(lambda: len(observer.workers()) == 2, "that it has left")
