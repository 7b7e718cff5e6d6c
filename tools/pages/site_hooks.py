"""Hooks of mkdocs.yml: pages from outside docs/, and links to code.

The documents are read in the repository, too, so their links are those of the repository. On the
site a link to another page leads there, and a link to any other file to the repository's web page.
A link to nothing is an error.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Container
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
OUTSIDE = "repository/"
"""Where on the site the files outside docs/ are, under their paths in the repository."""
LINK = re.compile(r"(\]\()([^)\s:#]+)(#[^)]*)?(\))")
FENCE = re.compile(r"^ {0,3}(```|~~~).*?^ {0,3}\1", re.M | re.S)


def _outside(nav: Any) -> list[str]:
    """All pages of the navigation that begin with OUTSIDE, as paths in the repository."""
    if isinstance(nav, str):
        return [nav.removeprefix(OUTSIDE)] if nav.startswith(OUTSIDE) else []
    parts = nav.values() if isinstance(nav, dict) else nav
    return [path for part in parts for path in _outside(part)]


def on_config(config: Any) -> Any:
    """Expand the entry `decisions` of the navigation into its pages."""

    def expand(nav: Any) -> Any:
        if isinstance(nav, list):
            return [expand(part) for part in nav]
        if isinstance(nav, dict):
            return {title: expand(part) for title, part in nav.items()}
        folder = ROOT / "docs" / nav
        return (
            [f"{nav}/{page.name}" for page in sorted(folder.glob("*.md"))]
            if folder.is_dir()
            else nav
        )

    config.nav = expand(config.nav)
    return config


def on_files(files: Files, config: Any) -> Files:
    for path in _outside(config.nav):
        files.append(File.generated(config, OUTSIDE + path, abs_src_path=str(ROOT / path)))
    return files


def on_page_content(html: str, page: Page, config: Any, files: Files) -> str:
    """Let the name of a test begin a line: on a phone it has no room behind its file's."""
    return html.replace("::test_", "::<wbr>test_")


def on_page_markdown(markdown: str, page: Page, config: Any, files: Files) -> str:
    pages, repository = files.src_uris, config.extra["repository"]

    def link(match: re.Match[str]) -> str:
        opening, target, anchor, closing = match.groups()
        found = site_link(target, page.file.src_uri, pages, repository)
        return f"{opening}{found}{anchor or ''}{closing}"

    parts, end = [], 0
    for fence in FENCE.finditer(markdown):
        parts += [LINK.sub(link, markdown[end : fence.start()]), fence.group()]
        end = fence.end()
    return "".join(parts) + LINK.sub(link, markdown[end:])


def site_link(target: str, here: str, pages: Container[str], repository: str) -> str:
    """Where the page `here` of the site leads with the repository's link `target`."""
    source = here.removeprefix(OUTSIDE) if here.startswith(OUTSIDE) else f"docs/{here}"
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    uri = path.removeprefix("docs/") if path.startswith("docs/") else OUTSIDE + path
    if uri in pages:
        return posixpath.relpath(uri, posixpath.dirname(here) or ".")
    if not (ROOT / path).exists():
        raise PluginError(f"{source} links to {target}, which is not there")
    return f"{repository}/{'tree' if (ROOT / path).is_dir() else 'blob'}/main/{path}"
