"""Small files that appear whole."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Any


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Put a whole file in its place, by rename; nothing is flushed to the disk."""
    fresh = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    fresh.write_text(json.dumps(content))
    fresh.rename(path)
