"""The documentation site builds without a warning, and reads well on a desktop and on a phone."""

import functools
import http.server
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from programs import ROOT, of_checkout
from seeds import SEED

pytest.importorskip("mkdocs", reason="mkdocs is missing: pip install --group docs")
pytest.importorskip("mkdocstrings", reason="mkdocstrings is missing: pip install --group docs")

from mkdocs.exceptions import PluginError

from pages import site_hooks

pytestmark = pytest.mark.xdist_group("site")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    environment = of_checkout() | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return folder


def test_each_call_is_in_the_reference(site: Path) -> None:
    page = (site / "api" / "timers.html").read_text()
    for call in ("schedule", "cancel", "reschedule", "poll", "schedule_many", "call_later"):
        assert f'id="wheeld_client.Timers.{call}"' in page
    assert "Seconds from now, finite and not negative." in page


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    handler = functools.partial(QuietHandler, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Nobody reads it."""

    def do_GET(self) -> None:
        """All but the search, which would read its whole index for each page that is looked at."""
        if "/workers/" in self.path:
            self.send_error(404)
        else:
            super().do_GET()


BROKEN = """() => [...document.querySelectorAll('td, th')].flatMap(cell => {
  const found = [], walker = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
  while (walker.nextNode())
    for (const word of walker.currentNode.data.matchAll(/\\w{4,}/g)) {
      const range = document.createRange();
      range.setStart(walker.currentNode, word.index);
      range.setEnd(walker.currentNode, word.index + word[0].length);
      if (range.getClientRects().length > 1) found.push(word[0]);
    }
  return found;
})"""


@pytest.mark.parametrize(
    ("width", "height", "scheme", "every"), [(1280, 900, "light", 8), (390, 844, "dark", 4)]
)
def test_no_page_is_wider_than_the_screen(
    site: Path, address: str, browser: Any, width: int, height: int, scheme: str, every: int
) -> None:
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    page = context.new_page()
    page.set_default_navigation_timeout(0)  # however slow the machine is
    complaints: list[str] = []
    asked: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    for path in sorted(site.rglob("*.html"))[SEED % every :: every]:
        page.goto(address + str(path.relative_to(site)), wait_until="domcontentloaded")
        root = "document.documentElement"
        if page.evaluate(f"{root}.scrollWidth > {root}.clientWidth"):
            complaints.append(f"{path.name} is wider than {width}")
        if broken := page.evaluate(BROKEN):
            complaints.append(f"{path.name} breaks words of tables: {broken}")
    context.close()
    assert complaints == []
    assert [url for url in asked if not url.startswith((address, "data:", "blob:"))] == []


@pytest.mark.parametrize(
    ("target", "here", "expected"),
    [
        ("../options.md", "how-to/index.md", "../options.md"),
        ("../../shm_layout.md", "how-to/index.md", "../repository/shm_layout.md"),
        ("docs/options.md", "repository/shm_layout.md", "../options.md"),
        ("../../setup.py", "how-to/index.md", "https://x/blob/main/setup.py"),
        ("../proofs/models", "trace.md", "https://x/tree/main/proofs/models"),
    ],
)
def test_links_to_pages_and_to_code(target: str, here: str, expected: str) -> None:
    pages = {"options.md", "repository/shm_layout.md"}
    assert site_hooks.site_link(target, here, pages, "https://x") == expected


def test_a_link_to_nothing_is_an_error() -> None:
    with pytest.raises(PluginError, match=r"docs/how-to/index.md links to nowhere.md"):
        site_hooks.site_link("nowhere.md", "how-to/index.md", {}, "https://x")


def test_every_page_is_in_the_navigation(site: Path) -> None:
    pages = {path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")}
    assert all((site / page.with_suffix(".html")).exists() for page in pages)
