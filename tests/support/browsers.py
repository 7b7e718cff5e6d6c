"""A real browser for tests that look at pages, and what to do where a machine lacks a program."""

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
QUIET = ("--no-sandbox", "--disable-background-networking")
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
