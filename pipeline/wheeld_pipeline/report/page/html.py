"""Pieces of a page, from the templates in this folder: figures, tables, tiles, the frame."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

Cell = Callable[[Any], str]
Columns = Sequence[tuple[str, str, Cell | None]]
"""A column of a table: heading, column of the frame, format of its values (None: text)."""

_ENVIRONMENT: Final = Environment(
    loader=FileSystemLoader(Path(__file__).with_name("templates")),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_PIECES: Final = _ENVIRONMENT.get_template("pieces.html")


def piece(name: str, *values: Any) -> str:
    return str(getattr(_PIECES.module, name)(*values))


def page(title: str, body: str) -> str:
    return piece("page", title, body)


def section(anchor: str, title: str, finding: str, *content: str) -> str:
    return piece("section", anchor, title, finding, content)


def figure(title: str, plot: str, caption: str, numbers: str = "", wide: bool = False) -> str:
    return piece("figure", title, plot, caption, numbers, wide)


def tiles(items: Sequence[tuple[str, str]]) -> str:
    return piece("tiles", items)


def table(
    frame: Any, columns: Columns, picked: Callable[[Any], bool] | None = None, whole: bool = False
) -> str:
    rows = [(row, picked is not None and picked(row)) for row in frame.to_dict("records")]
    return piece("table", columns, rows, whole)


def folded(title: str, content: str) -> str:
    return piece("folded", title, content)


def term(anchor: str, text: str) -> str:
    return piece("term", anchor, text)
