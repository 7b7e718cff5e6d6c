"""Shared by the tests of the daemon: places that others may enter, and another user."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from strangers import run_as_stranger
from wheeld.config.settings import Config
from wheeld_core import segments


@pytest.fixture
def stranger() -> list[str]:
    return run_as_stranger()


@pytest.fixture
def base(runtime_dir: Path) -> Path:
    runtime_dir.chmod(0o755)
    return runtime_dir


@pytest.fixture
def config(runtime_dir: Path, daemon_name: str) -> Iterator[Config]:
    yield Config(daemon_name, capacity=1024, runtime_dir=str(runtime_dir)).check()
    segments.unlink_all(f"wheeld-{daemon_name}-")
