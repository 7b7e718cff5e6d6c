"""How to add an extra to this installation: a user types what an error says."""

from __future__ import annotations

import sys
from pathlib import Path


def command(extra: str) -> str:
    """The command, by the program that installed this copy, from where it came."""
    import importlib.util  # here and below: only an error needs them, and a start takes 25 ms more
    import shlex

    if (source := _source()) is None:
        return f"pip install '.[{extra}]' in the checkout"
    what = shlex.quote(f"wheeld[{extra}]{source and ' @ '}{source}")
    prefix = Path(sys.prefix)
    if (prefix / "pipx_metadata.json").exists():
        return f"pipx install --force {what}"
    if (prefix / "uv-receipt.toml").exists():
        return f"uv tool install {what}"
    if prefix.parent.name == "archive-v0":  # of uv's cache
        return f"uvx --from {what} wheeld"
    python = shlex.quote(sys.executable)
    if importlib.util.find_spec("pip") is None:
        return f"uv pip install --python {python} {what}"
    return f"{python} -m pip install {what}"


def _source() -> str | None:
    """Its URL, "" for a package index; None: a checkout, or a file that is not there any more."""
    import json
    from importlib import metadata
    from urllib.parse import unquote, urlparse

    try:
        found = metadata.distribution("wheeld")
    except metadata.PackageNotFoundError:
        return None
    if found.read_text("INSTALLER") is None:  # what a build leaves in the checkout
        return None
    origin = json.loads(found.read_text("direct_url.json") or "{}")
    url = str(origin.get("url", ""))
    if "vcs_info" in origin:
        return f"{origin['vcs_info']['vcs']}+{url}@{origin['vcs_info']['commit_id']}"
    if origin.get("dir_info", {}).get("editable"):
        return None
    place = urlparse(url)
    return None if place.scheme == "file" and not Path(unquote(place.path)).exists() else url
