"""The text files of a checkout, as the house rules see them."""

from __future__ import annotations

import ast
import re
import subprocess
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

NOT_OURS = re.compile(r"\.(?!ci$).*|build|dist|__pycache__|.*\.egg-info")
"""Folders that are passed over where git cannot be asked."""


@dataclass(frozen=True, order=True)
class Violation:
    path: str
    line: int
    rule: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.message}"


@dataclass(frozen=True)
class Source:
    """A text file of the checkout; `path` is relative to `root`."""

    root: Path
    path: str
    text: str

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(ast.parse(self.text, self.path)))

    @cached_property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    def is_python(self) -> bool:
        return self.path.endswith(".py")

    def is_c(self) -> bool:
        return self.path.endswith((".c", ".h"))

    def violation(self, line: int, rule: str, message: str) -> Violation:
        return Violation(self.path, line, rule, message)


def sources(root: Path) -> list[Source]:
    """All text files that git tracks or would track; outside a git checkout, all files."""
    command = ["git", "-C", str(root), "ls-files", "-z", "-co", "--exclude-standard"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False)
    if listed.returncode == 0:
        paths = [root / name for name in listed.stdout.split("\0") if name]
    else:
        paths = [
            path
            for path in root.rglob("*")
            if not any(map(NOT_OURS.fullmatch, path.relative_to(root).parts[:-1]))
        ]
    found = []
    for path in sorted(path for path in paths if path.is_file()):
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found.append(Source(root, path.relative_to(root).as_posix(), text))
    return found
