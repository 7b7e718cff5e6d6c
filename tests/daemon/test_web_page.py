"""`wheeld start --web`: the page in a real browser, and what it refuses."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import wheeld
from browsers import VIEWS, background, too_wide, watched
from common_fixtures import daemon_process, shared_daemon
from daemons import LONG, Daemon, until
from web_pages import address, answer, get
from wheeld.metrics import web
from wheeld.metrics.server import serve
from wheeld_client import Jobs, Lease, connect
from wheeld_core.errors import WheelError

if TYPE_CHECKING:
    from playwright.sync_api import Page

OPTIONS: Any = {"virtual_clock": True, "web": "127.0.0.1:0", "pool": "requests=1M"}
daemon = daemon_process(**OPTIONS)
shared = shared_daemon(**OPTIONS)
"""For tests that leave it as it was."""
EVIL = "<img src=x onerror=alert(1)>"
KEYS = (
    f"{EVIL}</script><script>alert(2)</script>",
    "\"'`${alert(3)}",
    ("tuple", "</style><iframe src=javascript:alert(4)>", 5),
    "right\u202eleft\u2028line\x00\x1b[2J",
    "mail:" + "wide" * 60,
)


@pytest.fixture
def busy(daemon: Daemon) -> Iterator[str]:
    """Its address, with names that are markup in each list of the page."""
    with ExitStack() as stack:
        at = str(daemon.directory)
        timers = stack.enter_context(connect(at, worker=EVIL, group="<b>web"))
        for number, key in enumerate(KEYS):
            timers.schedule(100.0 + number, key=key, cookie=2**64 - 1)
        timers.schedule(0.5)
        stack.enter_context(Lease(timers, EVIL, 3600))
        jobs = Jobs("<i>shop", daemon=at)
        jobs.every(300.0, name="<s>nightly")(print)
        jobs.start()
        stack.callback(jobs.stop, wait=True)
        where = address(daemon)
        until(lambda: answer(where, "/state")["jobs"], "the job")
        yield where


def searched(page: Page, text: str) -> list[str]:
    page.fill("#key", text)
    page.click("#search button")
    page.locator("#found", has_text="soonest first").wait_for()
    return [row.strip() for row in page.locator("#timers td:nth-child(2)").all_text_contents()]


@pytest.mark.parametrize("view", list(VIEWS))
def test_a_browser_shows_it(
    daemon: Daemon, busy: str, browser: Any, view: str, tmp_path: Path
) -> None:
    with watched(browser, view, (f"http://{busy}/", "data:")) as (page, complaints):
        page.goto(f"http://{busy}/")
        page.wait_for_selector("#tiles dd")
        wheeld.advance(str(daemon.directory), 1.0)
        page.locator("#late", has_text="now: p50").wait_for()  # of the timer that has fired
        shown = page.inner_text("main")
        for name in (EVIL, "<b>web", "<i>shop/<s>nightly", "requests", f"wheeld {daemon.name}"):
            assert name in shown, name
        assert "clock ok" in shown
        assert len(searched(page, "")) >= len(KEYS)
        assert searched(page, "wide") == [KEYS[-1]]
        assert searched(page, "<iframe") == [repr(KEYS[2])]
        assert searched(page, "alert(2)") == [KEYS[0]]
        assert str(2**64 - 1) in (page.text_content("#timers") or "")
        assert page.locator("img, iframe, script").count() == 1  # its own script
        assert not too_wide(page)
        cards = "[...document.querySelectorAll('#lists .card')]"
        cut = f"{cards}.filter(card => card.scrollWidth > card.clientWidth).length"
        assert page.evaluate(cut) == 0, "a list hides a column"
        assert (max(background(page)) < 60) == ("dark" in view)
        page.screenshot(path=tmp_path / "page.png", full_page=True)
        assert complaints == []
        daemon.kill()
        page.wait_for_selector("#trouble:not([hidden])")


def test_the_policy_lets_no_other_script_run(daemon: Daemon, busy: str, browser: Any) -> None:
    with watched(browser, "desktop", (f"http://{busy}/", "data:")) as (page, complaints):
        page.goto(f"http://{busy}/")
        page.evaluate(
            """document.body.insertAdjacentHTML('beforeend',
                '<img src=data:, onerror="window.ran = 1"><p style="color: red">')"""
        )
        page.evaluate(
            """const made = document.createElement('script');
            made.textContent = 'window.ran = 2'; document.body.append(made)"""
        )
        until(lambda: len(complaints) >= 3, "three refusals")
        assert page.evaluate("window.ran") is None
        assert all("Content Security Policy" in each for each in complaints)


def test_heads(shared: Daemon) -> None:
    page, state = get(address(shared)), get(address(shared), "/state")
    for found in (page, state):
        assert found.headers["Cache-Control"] == "no-store"
        assert found.headers["X-Content-Type-Options"] == "nosniff"
        policy = found.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'")
        assert "unsafe" not in policy
        assert "Access-Control-Allow-Origin" not in found.headers
    assert not re.search(rb"innerHTML|insertAdjacent|document\.write|eval\(|https?:", page.read())


OURS = (
    "127.0.0.1", "127.0.0.1:9465", "[::1]:80", "localhost:1", "LOCALHOST", socket.gethostname(),
)  # fmt: skip
FOREIGN = (
    "", "evil.example", "127.0.0.1.evil.example", "127.0.0.1@evil", "localhost.evil.example:9465",
    "evil.example:127.0.0.1", "[::1", "2130706433", "localhost,evil.example",
)  # fmt: skip


def test_a_name_of_another_host_is_refused(shared: Daemon) -> None:
    where = address(shared)
    for path in ("/", "/state", "/timers?key="):
        for hosts, status in ((OURS, 200), (FOREIGN, 421)):
            assert {host: get(where, path, Host=host).status for host in hosts} == dict.fromkeys(
                hosts, status
            )


def test_two_hosts_are_refused(shared: Daemon) -> None:
    host, _, port = address(shared).rpartition(":")
    with socket.create_connection((host, int(port)), LONG) as end:
        end.sendall(b"GET /state HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n")
        assert end.recv(100).startswith(b"HTTP/1.1 421 ")


def test_requests(shared: Daemon) -> None:
    where = address(shared)
    for method, path, status in (
        ("HEAD", "/", 200),
        ("POST", "/state", 405),
        ("DELETE", "/timers", 405),
        ("GET", "/metrics", 404),
        ("GET", "/../etc/passwd", 404),
        ("GET", "/state?x", 200),
        ("GET", "/timers?key=%ff", 400),
        ("GET", "/timers?key=" + "a" * (web.LONGEST_SEARCH + 1), 414),
        ("GET", "/timers?a=1&b=2&c=3&d=4&e=5", 400),
    ):
        assert get(where, path, method=method).status == status, path


def test_rates_are_of_the_last_seconds(daemon: Daemon) -> None:
    where = address(daemon)
    with connect(str(daemon.directory), worker="a") as timers:
        assert answer(where, "/state")["workers"][0]["per_second"]["scheduled"] == 0
        timers.schedule_many([9.0] * 100)
        found = answer(where, "/state")
        assert found["workers"][0]["per_second"]["scheduled"] > 0
        assert found["pending"] == 100
        assert found["directory"]["keys"]["used"] == 0


@contextmanager
def alone(read: Callable[[], Any], directory: Path) -> Iterator[str]:
    listen = "127.0.0.1:0"
    with serve({"--web": (listen, web.Web(read, directory, listen))}) as (where,):
        yield where


def test_a_daemon_that_does_not_answer(tmp_path: Path) -> None:
    def read() -> Any:
        raise WheelError("there is <none>")

    with alone(read, tmp_path / "d") as where:
        for path in ("/state", "/timers"):
            found = get(where, path)
            assert found.status == 503
            assert "there is" in json.loads(found.read())["trouble"] or path == "/timers"
        assert get(where).status == 200


def test_a_reading_is_for_all_searches(shared: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one reads the slots, sixteen different ones wait for the next reading; no more do."""
    monkeypatch.setattr(web, "MOST_SEARCHES", 2)
    rounds: list[list[str]] = []
    with ExitStack() as stack:
        timers = stack.enter_context(connect(str(shared.directory)))
        timers.schedule(9.0, key="ann")
        find = web.Web._searched

        def searching(self: Any, texts: list[str]) -> dict[str, bytes]:
            rounds.append(texts)
            return find(self, texts)

        monkeypatch.setattr(web.Web, "_searched", searching)
        where = stack.enter_context(alone(shared.status, shared.directory))
        host, _, port = where.rpartition(":")
        ends = []
        for text in ("an", "bo", "an", "cy"):
            ends.append(stack.enter_context(socket.create_connection((host, int(port)), LONG)))
            ends[-1].sendall(f"GET /timers?key={text} HTTP/1.1\r\nHost: {where}\r\n\r\n".encode())
        said = [end.makefile("rb").read() for end in ends]
    assert [b"200 OK" in each for each in said].count(True) >= 2
    assert all(b"200 OK" in each or b"503 Service" in each for each in said)
    assert all(len(each) <= 2 for each in rounds)
    assert b'"key": "ann"' in said[0]


def test_both_on_one_server(daemon: Daemon) -> None:
    daemon.stop()
    daemon.start(metrics="127.0.0.1:0")
    found = daemon.status()
    where = address(daemon)
    assert found["metrics"]["pid"] == found["web"]["pid"]
    assert found["metrics"]["address"] != where
    assert get(where, "/metrics").status == 404
    assert b"wheeld_up" in get(found["metrics"]["address"], "/metrics").read()
    daemon.stop()
    assert "--web 127.0.0.1" in daemon.refused(web=where, metrics=where)
