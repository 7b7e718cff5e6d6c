"""Segments are made and removed with posix_ipc and without it."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from programs import of_checkout
from wheeld_core import segments, shm

SESSION = """
import wheeld
from wheeld_client import connect
from wheeld_core import shm
assert shm.PROVIDER == "wheeld_core", shm.PROVIDER
with wheeld.embedded(capacity=1024) as daemon, connect(daemon) as timers:
    timers.schedule(0.001, 7)
    assert timers.poll(60.0)["cookie"].tolist() == [7]
"""


@pytest.fixture(params=["posix_ipc", "wheeld_core"])
def provider(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "posix_ipc" and shm.PROVIDER != "posix_ipc":
        pytest.skip("posix_ipc is not installed, or would enable the GIL")
    monkeypatch.setattr(shm, "PROVIDER", request.param)
    return str(request.param)


@pytest.fixture
def name() -> Iterator[str]:
    name = f"wheeld-test-{secrets.token_hex(8)}"
    yield name
    Path("/dev/shm", name).unlink(missing_ok=True)


@pytest.mark.usefixtures("provider")
def test_a_segment(name: str) -> None:
    with memoryview(segments.create(name, 8192, mode=0o640)) as memory:
        found = os.stat(f"/dev/shm/{name}")
        assert (found.st_size, found.st_mode & 0o777) == (8192, 0o640)
        with pytest.raises(segments.NameTaken, match=name):
            segments.create(name, 8192)
        memory[:4] = b"kept"
        segments.unlink(name)
        assert not Path("/dev/shm", name).exists()
        segments.unlink(name)
        assert memory[:4] == b"kept"


@pytest.mark.usefixtures("provider")
def test_each_error_is_its_own(name: str) -> None:
    with pytest.raises(FileNotFoundError):
        shm.unlink(name)
    os.close(shm.make(name, 0o600))
    with pytest.raises(FileExistsError):
        shm.make(name, 0o600)


def test_a_daemon_without_posix_ipc(tmp_path: Path) -> None:
    (tmp_path / "posix_ipc.py").write_text("raise ImportError('not for this Python')\n")
    environment = of_checkout()
    environment["PYTHONPATH"] = f"{tmp_path}:{environment['PYTHONPATH']}"
    done = subprocess.run(
        [sys.executable, "-c", SESSION], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
