"""Pieces of a page: figures, tables, tiles, and the frame around all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from wheeld_pipeline.report.style import STYLE

Cell = Callable[[Any], str]
Columns = Sequence[tuple[str, str, Cell | None]]
"""Of a table: heading, column of the frame, how its values are shown (None: as text)."""


def page(title: str, body: str) -> str:
    """A whole page that needs nothing else."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>\n'
        f'<link rel="icon" '
        f'href="data:,"/>\n<title>{escape(title)}</title>\n<style>{STYLE}</style>\n'
        f"</head>\n<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def section(anchor: str, title: str, finding: str, *content: str) -> str:
    """A part of the page: heading, what it finds, and its figures."""
    return (
        f'<section aria-labelledby="{anchor}">\n<h2 id="{anchor}">{escape(title)}</h2>\n'
        f'<p class="sub">{finding}</p>\n<div class="grid2">\n{"".join(content)}\n</div>\n</section>'
    )


def figure(title: str, plot: str, caption: str, numbers: str = "", wide: bool = False) -> str:
    """A plot with its finding as title, its definition below, and its numbers."""
    kind = ' class="wide"' if wide else ""
    return (
        f"<figure{kind}>\n<h3>{escape(title)}</h3>\n{plot}\n<figcaption>{caption}</figcaption>\n"
        f"{numbers}</figure>\n"
    )


def tiles(items: Sequence[tuple[str, str]]) -> str:
    """Single numbers: value, and what it is (HTML)."""
    inside = "".join(f"<li><b>{escape(value)}</b><span>{what}</span></li>" for value, what in items)
    return f'<ul class="tiles">{inside}</ul>'


def table(
    frame: Any, columns: Columns, picked: Callable[[Any], bool] | None = None, whole: bool = False
) -> str:
    """Rows of a frame; unless it is to be seen whole, a long one scrolls."""
    head = "".join(
        f'<th scope="col"{"" if show else kind}>{escape(name)}</th>'
        for name, _, show in columns
        for kind in (' class="t"',)
    )
    rows = []
    for row in frame.to_dict("records"):
        cells = "".join(
            f"<td>{escape(show(row[key]))}</td>"
            if show
            else f'<td class="t">{escape(str(row[key]))}</td>'
            for _, key, show in columns
        )
        marked = ' class="pick"' if picked is not None and picked(row) else ""
        rows.append(f"<tr{marked}>{cells}</tr>")
    kind = "scroll whole" if whole else "scroll"
    return (
        f'<div class="{kind}" tabindex="0"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def folded(title: str, content: str) -> str:
    """What opens on a click, without a script."""
    return f"<details><summary>{escape(title)}</summary>{content}</details>"


def term(anchor: str, text: str) -> str:
    """A word that the glossary explains."""
    return f'<a href="#g-{anchor}">{escape(text)}</a>'
