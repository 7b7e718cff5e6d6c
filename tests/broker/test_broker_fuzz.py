"""Requests that were bent on their way: tests/support/broker_fuzz.py goes on for minutes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.importorskip("kio")

import broker_fuzz

FRAMES = int(os.environ.get("BROKER_FUZZ", "200"))
SLACK = 64 << 20
"""Bytes that two workers may have more for other reasons, such as modules for each API's schema."""


def test_bent_requests_harm_nobody(tmp_path: Path) -> None:
    """Each is answered, or its connection ends with a reason; nothing of it stays."""
    counts, before, after = broker_fuzz.fuzzed(
        tmp_path, lambda fuzz: broker_fuzz.examples(fuzz, FRAMES)
    )
    assert counts["frames"] >= FRAMES
    assert min(counts["answered"], counts["closed"]) > 0
    assert after < before + SLACK
