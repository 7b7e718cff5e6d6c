#!/usr/bin/env python3
"""Take the picture of a report that the docs show: `report_picture.py REPORT.html PICTURE.png`.

Needs playwright and an installed Chromium (Debian: sudo apt-get install chromium).
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--width", type=int, default=1200)
    parser.add_argument("--height", type=int, default=1500, help="0: all of the page")
    parser.add_argument("--dark", action="store_true")
    options = parser.parse_args()
    browser = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if browser is None:
        print(f"no browser found: expected one of {', '.join(BROWSERS)}", file=sys.stderr)
        return 1
    from playwright.sync_api import sync_playwright

    scheme = "dark" if options.dark else "light"
    size = {"width": options.width, "height": options.height or 900}
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        page = started.new_context(viewport=size, color_scheme=scheme).new_page()
        page.goto(options.page.resolve().as_uri())
        page.screenshot(path=options.picture, full_page=not options.height)
        started.close()
    print(options.picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
