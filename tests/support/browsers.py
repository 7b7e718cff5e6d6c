"""A real browser for tests that look at pages, and what to do where a machine lacks a program."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
QUIET = ("--no-sandbox", "--disable-background-networking")
VIEWS = {
    "desktop": (1280, 900, "light"),
    "phone": (390, 844, "light"),
    "dark": (1280, 900, "dark"),
    "dark phone": (360, 740, "dark"),
}
IN_CI = os.environ.get("CI") == "true"


def missing(why: str) -> None:
    if IN_CI:
        pytest.fail(why)
    pytest.skip(why)


@pytest.fixture(scope="session")
def browser_path() -> str:
    found = next((path for name in BROWSERS if (path := shutil.which(name))), "")
    if not found:
        missing("no Chromium is installed (Debian: sudo apt-get install chromium)")
    return found


@pytest.fixture(scope="module")
def browser(browser_path: str) -> Iterator[Any]:
    sync_api = pytest.importorskip(
        "playwright.sync_api", reason="playwright is missing: pip install playwright"
    )
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=browser_path, args=[*QUIET])
        yield started
        started.close()


@contextmanager
def watched(
    browser: Any, view: str, own: tuple[str, ...], offline: bool = False
) -> Iterator[tuple[Any, list[str]]]:
    """A page seen as in one of `VIEWS`, and what it complains of: errors, refused scripts, and
    requests for anything whose address does not begin with one of `own`."""
    width, height, scheme = VIEWS[view]
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, offline=offline
    )
    page, complaints = context.new_page(), list[str]()
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("requestfailed", lambda request: complaints.append(f"failed: {request.url}"))
    page.on(
        "request",
        lambda request: (
            None if request.url.startswith(own) else complaints.append(f"asks for {request.url}")
        ),
    )
    yield page, complaints
    context.close()


def too_wide(page: Any) -> bool:
    """Does it scroll sideways?"""
    return bool(page.evaluate("document.documentElement.scrollWidth > innerWidth"))


def background(page: Any) -> list[int]:
    """The channels of its colour, 0 to 255."""
    text = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g)"
    return [int(channel) for channel in page.evaluate(text)]
