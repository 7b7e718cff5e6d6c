"""Shared by the tests of the recorder."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from recorded import Recording, made_to_record
from recorder_records import Ring


@pytest.fixture
def recording(daemon_name: str, runtime_dir: Path, tmp_path: Path) -> Iterator[Recording]:
    with made_to_record(daemon_name, runtime_dir, tmp_path / "trace") as made:
        yield made


@pytest.fixture
def ring() -> Ring:
    return Ring()
