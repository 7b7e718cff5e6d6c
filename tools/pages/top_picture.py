#!/usr/bin/env python3
"""Make the pictures of a daemon at work in the docs.

python tools/pages/top_picture.py docs/images/top.svg                 `wheeld top`
python tools/pages/top_picture.py docs/images/page.png [--scheme dark]    its web page

The daemon and its workers are real; they live for some seconds. The page needs playwright and
Chromium.
"""

from __future__ import annotations

import argparse
import io
import re
import shutil
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

import wheeld
from wheeld.cli.top import screen
from wheeld.metrics.activity import compare, look
from wheeld_client import MemoryPool, Timers, connect
from wheeld_core.control import ask
from wheeld_core.control.messages import Request

LOADS = {"api-1": 900, "api-2": 700, "payments-1": 250, "sessions": 60, "reports": 2}
"""Timers that each worker schedules in a turn."""
GROUPS = {"api-1": "api", "api-2": "api"}
TURNS, TURN_SECONDS = 40, 0.05


def work(workers: dict[str, Timers], reader: str, turns: int = TURNS) -> None:
    """Two seconds of timers, some cancelled; all but `reader` poll."""
    for _ in range(turns):
        for name, timers in workers.items():
            ids = timers.schedule_many([0.02 + 0.001 * (i % 500) for i in range(LOADS[name])])
            timers.cancel_many(ids[::9])
            if name != reader:
                timers.poll(0)
        time.sleep(TURN_SECONDS)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--scheme", choices=["light", "dark"], default="light")
    options = parser.parse_args()
    picture, on_page = options.picture, options.picture.suffix == ".png"
    with ExitStack() as stack:
        daemon = stack.enter_context(
            wheeld.embedded(
                name="shop", capacity=1 << 17, pools=["requests=64M"], web="127.0.0.1:0"
            )
        )
        workers = {
            name: stack.enter_context(connect(daemon, worker=name, group=GROUPS.get(name)))
            for name in LOADS
        }
        stack.enter_context(MemoryPool(workers["api-1"], "requests").allocate(9 << 20))
        if on_page:
            working = threading.Thread(target=work, args=(workers, "payments-1", 6 * TURNS))
            working.start()
            photograph(status(daemon)["web"]["address"], options.scheme, picture)
            working.join()
            return 0
        work(workers, "nobody")
        began, first = look(lambda: status(daemon))
        work(workers, "payments-1")
        ended, second = look(lambda: status(daemon))
    console = Console(record=True, width=80, file=io.StringIO(), force_terminal=True)
    found = {**compare(first, second, ended - began), "name": "shop"}
    console.print(screen(found, "fired", keys=True))
    drawn = console.export_svg(title="wheeld top --name shop")
    # No font is fetched from another host: the page's own monospaced one does.
    drawn = re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.S)
    picture.write_text(" ".join(drawn.split()) + "\n")
    print(picture)
    return 0


def photograph(address: str, scheme: Literal["light", "dark"], picture: Path) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page()
        page.set_viewport_size({"width": 1000, "height": 720})
        page.emulate_media(color_scheme=scheme)
        page.goto(f"http://{address}/")
        page.wait_for_timeout(9000)  # so that there is a line
        page.screenshot(path=picture)
        browser.close()


def status(daemon: Any) -> dict[str, Any]:
    found: dict[str, Any] = ask(Path(str(daemon)), Request.STATUS)["status"]
    return found


if __name__ == "__main__":
    sys.exit(main())
