"""What a benchmark reads of the daemon that it runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from wheeld_core import _native, control, runtime, segments
from wheeld_core.control.messages import Request
from wheeld_core.views import WheelView


def facts(name: str) -> dict[str, Any]:
    """Its daemon.json: pid, clock_pid, segments."""
    content: dict[str, Any] = json.loads((Path(name) / runtime.DAEMON_FILE).read_text())
    return content


def wheel_view(name: str) -> WheelView:
    """Its wheel segment, mapped read-only; reading it wakes nobody."""
    segment = facts(name)["segments"]["wheel"]
    return WheelView(segments.attach(segment, _native.KIND_WHEEL, writable=False))


def status(name: str) -> dict[str, Any]:
    """What `wheeld status --json` says."""
    content: dict[str, Any] = control.ask(runtime.find(name, None), Request.STATUS)["status"]
    return content
