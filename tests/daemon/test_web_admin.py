"""Tokens of the page: who may read, and who may cancel timers from a browser."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from browsers import VIEWS, too_wide, watched
from common_fixtures import daemon_process
from daemons import Daemon, until
from web_pages import address, answer, get
from wheeld.metrics.server import READING, Request, response, serve
from wheeld_client import Timers, connect

READER, ADMIN = "r" * 32, "a" * 32
daemon = daemon_process(started=False, virtual_clock=True, web="127.0.0.1:0")


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    found = {}
    for option, token in (("web_token", READER), ("web_admin", ADMIN)):
        found[option] = tmp_path / option
        found[option].touch(0o600)
        found[option].write_text(token + "\n")
    return found


@pytest.fixture
def timers(daemon: Daemon, files: dict[str, Path]) -> Iterator[Timers]:
    daemon.start(web_admin=files["web_admin"])
    with connect(str(daemon.directory), worker="web") as timers:
        yield timers


def cancel(where: str, query: str, *, method: str = "POST", **headers: str) -> int:
    """The status of a request as the page sends it, but for these headers; empty: without."""
    sent = {"Origin": f"http://{where}", "Authorization": f"Bearer {ADMIN}"} | headers
    return get(where, f"/cancel?{query}", method=method, **sent).status


def test_by_id_and_by_key(daemon: Daemon, timers: Timers) -> None:
    where, key = address(daemon), "mail: <ä>&%"
    first, other = timers.schedule(9.0), timers.schedule(9.0)
    timers.schedule(9.0, key=key)
    timers.schedule(9.0, key="")
    assert cancel(where, f"id={first}") == 200
    assert cancel(where, f"key={quote(key)}") == 200
    assert cancel(where, "key=") == 200
    assert timers.pending == 1
    assert cancel(where, f"id={first}") == 404
    assert cancel(where, f"key={quote(key)}") == 404
    assert timers.cancel(other)
    said = daemon.said()
    assert f"the page has cancelled the timer of the id {first}" in said
    assert ADMIN not in said


def test_what_changes_nothing(daemon: Daemon, timers: Timers, files: dict[str, Path]) -> None:
    """Each differs in one thing from the request that cancels it at the end."""
    where, mine = address(daemon), timers.schedule(9.0, key="mine")
    port = where.rpartition(":")[2]
    for query in ("id=", "id=x", f"id={mine}&id={mine}", f"id={mine}&key=mine", "", "key=%ff",
                  f"id={2**64}", f"id={mine}&more=1", f"id=-{mine}",
                  "id=" + "9" * 5000):  # fmt: skip
        assert cancel(where, query) == 400, query
    for origin in ("", "null", "http://evil.example", f"http://127.0.0.1.evil:{port}",
                   f"http://localhost:{port}", "http://127.0.0.1", f"file://{where}",
                   f"http://{where}, http://evil.example"):  # fmt: skip
        assert cancel(where, f"id={mine}", Origin=origin) == 403, origin
    for token in ("", "Bearer", f"Bearer {READER}", f"Bearer {ADMIN[:-1]}", f"Bearer {ADMIN}a",
                  f"Basic {ADMIN}", ADMIN, "Bearer \xe4",
                  f"Bearer {ADMIN}, Bearer {ADMIN}"):  # fmt: skip
        assert cancel(where, f"id={mine}", Authorization=token) == 401, token
    assert cancel(where, f"id={mine}&token={ADMIN}", Authorization="") == 401
    assert cancel(where, f"id={mine}", Authorization="", Cookie=f"token={ADMIN}") == 401
    for method, status in (("GET", 404), ("HEAD", 404), ("PUT", 405), ("DELETE", 405),
                           ("OPTIONS", 405), ("PATCH", 405), ("post", 405)):  # fmt: skip
        assert cancel(where, f"id={mine}", method=method) == status, method
    evil = {"Host": "evil.example", "Origin": "http://evil.example"}
    assert cancel(where, f"id={mine}", **evil) == 421
    assert get(where, "/state", method="POST", Origin=f"http://{where}").status == 405
    assert timers.pending == 1
    assert cancel(where, f"id={mine}", Origin=f"HTTPS://{where}") == 200, "behind a TLS proxy"


@pytest.mark.parametrize("options", [{}, {"web_token"}])
def test_without_the_option_nothing_is_changed(
    daemon: Daemon, files: dict[str, Path], options: set[str]
) -> None:
    daemon.start(**{option: files[option] for option in options})
    where = address(daemon)
    with connect(str(daemon.directory)) as timers:
        mine = timers.schedule(9.0, key="mine")
        for token in (READER, ADMIN):
            bearer = f"Bearer {token}"
            assert cancel(where, f"id={mine}", Authorization=bearer) == 405
            assert cancel(where, "key=mine", Authorization=bearer) == 405
        assert timers.pending == 1


def test_reading_with_a_token(daemon: Daemon, files: dict[str, Path]) -> None:
    daemon.start(**files)
    where = address(daemon)
    for path in ("/state", "/timers?key="):
        statuses = [
            get(where, path, Authorization=token and f"Bearer {token}").status
            for token in ("", "x" * 32, READER, ADMIN)
        ]
        assert statuses == [401, 401, 200, 200], path
    assert get(where, "/state").headers["WWW-Authenticate"] == "Bearer"
    assert get(where).status == 200, "the page has no figures, and asks for the token"
    assert answer(where, "/rights") == {"read": False, "cancel": False, "more": True}
    assert cancel(where, "id=1", Authorization=f"Bearer {READER}") == 401
    told = json.loads(get(where, "/rights", Authorization=f"Bearer {ADMIN}").read())
    assert told == {"read": True, "cancel": True, "more": False}


def test_a_token_is_in_no_command_line_or_log(daemon: Daemon, files: dict[str, Path]) -> None:
    daemon.start(**files)
    exporter = daemon.status()["web"]["pid"]
    for pid in (daemon.pid, exporter):
        for name in ("cmdline", "environ"):
            found = Path(f"/proc/{pid}/{name}").read_bytes()
            assert ADMIN.encode() not in found
            assert READER.encode() not in found
    assert ADMIN not in daemon.said()
    assert ADMIN not in json.dumps(daemon.status())


@pytest.mark.parametrize("option", ["web_token", "web_admin"])
def test_files_that_are_refused(daemon: Daemon, files: dict[str, Path], option: str) -> None:
    path = files[option]
    flag = "--" + option.replace("_", "-")
    for mode in (0o604, 0o620, 0o602, 0o666):
        path.chmod(mode)
        assert f"{flag} {path}: its mode is {mode:o}" in daemon.refused(**{option: path})
    path.chmod(0o640)  # a group may read it, as a container's secrets are
    daemon.start(**{option: path})
    daemon.stop()
    for text in (
        "",
        "short",
        "a" * 31,
        "a" * 257,
        "two words" * 9,
        f"{'a' * 32}\n{'b' * 32}",
        "ä" * 40,
    ):
        path.write_text(text)
        said = daemon.refused(**{option: path})
        assert f"{flag} {path}: expected one line of 32 to 256 letters" in said
        assert not text or text not in said
    path.unlink()
    assert "openssl rand -hex 32" in daemon.refused(**{option: path})
    path.mkdir(0o700)
    assert "directory" in daemon.refused(**{option: path})
    path.rmdir()
    os.mkfifo(path, 0o600)
    assert f"{flag} {path}: expected a file" in daemon.refused(**{option: path})
    options = {**daemon.options}
    daemon.options.pop("web")
    assert "give --web, too" in daemon.refused(**{option: path})
    daemon.options.update(options)


def use(page: Any, token: str) -> None:
    page.fill("#token", token)
    page.click("#enter button")


@pytest.mark.parametrize("view", list(VIEWS))
def test_in_a_browser(daemon: Daemon, files: dict[str, Path], browser: Any, view: str) -> None:
    daemon.start(**files)
    where = address(daemon)
    with (
        connect(str(daemon.directory), worker="web") as timers,
        watched(browser, view, (f"http://{where}/", "data:")) as (page, complaints),
    ):
        keys = ["<i>ann", "bob", "cy"]
        ids = dict(
            zip(keys, timers.schedule_many([5.0, 6.0, 7.0], keys=keys).tolist(), strict=True)
        )
        page.goto(f"http://{where}/")
        trouble = page.locator("#trouble")
        page.locator("#trouble", has_text="A token is needed").wait_for()
        assert page.locator("#tiles dd").count() == 0
        use(page, "x" * 32)
        page.locator("#trouble", has_text="does not accept this token").wait_for()
        use(page, READER)
        page.wait_for_selector("#tiles dd")
        page.click("#search button")
        page.locator("#found", has_text="soonest first: 3").wait_for()
        assert page.locator("#timers button").count() == 0
        assert page.locator("#cancel").is_hidden()
        use(page, ADMIN)
        page.locator("#cancel").wait_for()
        assert page.locator("#enter").is_hidden()
        assert trouble.is_hidden()
        page.click("#search button")
        page.locator("#timers button").first.wait_for()
        assert not too_wide(page)
        asked: list[str] = []
        page.once("dialog", lambda dialog: (asked.append(dialog.message), dialog.dismiss()))
        page.locator("#timers button").first.click()
        assert timers.find("<i>ann")
        page.once("dialog", lambda dialog: (asked.append(dialog.message), dialog.accept()))
        page.locator("#timers button").first.click()
        page.locator("#done", has_text="Cancelled the timer of the id").wait_for()
        page.locator("#found", has_text="soonest first: 2").wait_for()
        assert asked == [f"Cancel the timer of the id {ids['<i>ann']}, key <i>ann? "
                         "It will not be delivered."] * 2  # fmt: skip
        assert timers.find("<i>ann") is None
        page.on("dialog", lambda dialog: dialog.accept())
        for by, which in (("key", "bob"), ("id", str(ids["cy"]))):
            page.select_option("#by", by)
            page.fill("#which", which)
            page.click("#cancel button")
            page.locator("#done", has_text=f"Cancelled the timer of the {by} {which}").wait_for()
        until(lambda: timers.pending == 0, "all are cancelled")
        page.click("#cancel button")
        page.locator("#done", has_text="no pending timer has the id").wait_for()
        told = [each for each in complaints if not re.search(r"\b40[14]\b|/rights$", each)]
        assert told == [], "more than what the browser says of the refused requests"
        assert (
            page.evaluate("document.cookie + JSON.stringify({...sessionStorage, ...localStorage})")
            == "{}"
        )
        assert "token" not in page.url


class Foreign:
    """A page of another origin, of the same site even."""

    methods = READING

    def find(self, request: Request) -> Callable[[], Awaitable[bytes]]:
        async def page() -> bytes:
            return response("200 OK", "text/html", b"<link rel=icon href=data:,>")

        return page


def test_a_page_of_another_site(daemon: Daemon, timers: Timers, browser: Any) -> None:
    where = address(daemon)
    mine = timers.schedule(9.0)
    with (
        serve({"foreign": ("127.0.0.1:0", Foreign())}) as (foreign,),
        watched(browser, "desktop", ("http", "data:")) as (page, _),
    ):
        page.goto(f"http://{foreign}/")
        answers: list[tuple[str, int]] = []
        page.on("response", lambda found: answers.append((found.request.method, found.status)))
        tried = page.evaluate(
            """async ([at, token]) => {
                const mode = "no-cors", headers = {Authorization: `Bearer ${token}`}, found = [];
                for (const options of [{}, {mode}, {mode, credentials: "include"}, {headers}])
                    try {
                        found.push((await fetch(at, {method: "POST", ...options})).type);
                    } catch (error) { found.push("refused"); }
                return found;
            }""",
            [f"http://{where}/cancel?id={mine}", ADMIN],
        )
        page.set_content(f"<form method=post action='http://{where}/cancel?id={mine}'><button>x")
        with page.expect_response(lambda found: "/cancel" in found.url):
            page.click("button")
        assert tried == ["refused", "opaque", "opaque", "refused"]
        assert answers == [("POST", 403)] * 3, "the last one ended with its preflight"
    assert timers.pending == 1
