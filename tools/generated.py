"""Shared by the tools that write parts of documents: --check and --write."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parent.parent


def settle(fresh: Mapping[Path, str], tool: str, description: str | None) -> int:
    """Check or write, as the command line says; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawTextHelpFormatter
    )
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--check", action="store_true")
    action.add_argument("--write", action="store_true")
    write = parser.parse_args().write
    differ = [path for path, text in fresh.items() if path.read_text() != text]
    for path in differ:
        if write:
            path.write_text(fresh[path])
        else:
            name = path.relative_to(ROOT)
            print(f"{name} differs from the code; run: python -m tools.{tool} --write")
    return int(bool(differ) and not write)
