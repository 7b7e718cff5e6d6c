"""A restart to a program with another layout of the shared memory, and back.

The other one is this one, built with another version number.
"""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from daemons import LONG, Daemon, until
from wheeld_client import DaemonNotRunning, LayoutMismatch, Reconnection, Timers, connect
from wheeld_core import _native

CORE = Path(__file__).resolve().parents[2] / "core"
OTHER = 77

PROGRAM = """
import os, sys
other = sys.argv.pop(1)
paths = [path for path in os.environ.get("PYTHONPATH", "").split(":") if path != other]
sys.path[:] = [path for path in sys.path if path != other]
if os.path.exists(other + "/installed"):
    paths.insert(0, other)
    sys.path.insert(0, other)
os.environ["PYTHONPATH"] = ":".join(paths)
from wheeld.__main__ import main
main()
"""

SUCCESSOR = """
import json, sys
import numpy as np
from wheeld_client import connect
from wheeld_core import _native
timers = connect(sys.argv[1], worker="w", on_death="keep")
ids = np.array(json.loads(sys.argv[2]), np.uint64)
found = [_native.LAYOUT_VERSION, timers.adopted, timers.pending, timers.cancel(int(ids[0]))]
print(json.dumps(found))
timers.close()
"""


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("other")
    shutil.copytree(
        CORE / "wheeld_core", place / "wheeld_core", ignore=shutil.ignore_patterns("_native*.so")
    )
    shutil.copytree(CORE / "include", place / "include")
    layout = place / "include/wheeld/shared/layout.h"
    was = f"#define WH_LAYOUT_VERSION {_native.LAYOUT_VERSION}u"
    assert was in layout.read_text()
    layout.write_text(layout.read_text().replace(was, f"#define WH_LAYOUT_VERSION {OTHER}u"))
    extension = f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"
    command = [
        "gcc",
        "-O0",
        "-shared",
        "-fPIC",
        "-std=c11",
        "-w",
        "-fvisibility=hidden",
        "-DNDEBUG",
    ]
    command += ["-I", str(place / "include"), "-I", sysconfig.get_path("include")]
    command += [str(place / "wheeld_core/native/module.c")]
    subprocess.run([*command, "-o", str(place / "wheeld_core" / extension)], check=True)
    return place


@pytest.fixture
def daemon(runtime_dir: Path, daemon_name: str, other: Path) -> Iterator[Daemon]:
    program = runtime_dir / "program.py"
    program.write_text(PROGRAM)
    with Daemon(runtime_dir, daemon_name, max_workers=6) as daemon:
        daemon.program = [sys.executable, str(program), str(other)]
        yield daemon
    (other / "installed").unlink(missing_ok=True)


def refused(timers: Timers) -> str:
    said: list[str] = []

    def call() -> bool:
        try:
            timers.poll(0.05)
        except LayoutMismatch as error:
            said.append(str(error))
        return bool(said)

    until(call, "refused")
    return said[0]


def test_there_and_back(daemon: Daemon, other: Path, tmp_path: Path) -> None:
    """Timers go over in the snapshot, each way, under their ids; a client of each layout finds them
    under its name, and one of the wrong layout is told so until its daemon is back."""
    daemon.start(state_dir=tmp_path)
    pid = daemon.pid
    events: list[Reconnection] = []
    with connect(
        str(daemon.directory), worker="w", reconnect_for=LONG, on_reconnect=events.append
    ) as timers:
        ids = timers.schedule_many([1000.0] * 10)
        (other / "installed").touch()
        done = daemon.command("restart")
        assert done.returncode == 0, done.stderr + daemon.said()
        assert "through a snapshot, to another layout" in done.stderr
        assert (daemon.status()["pid"], daemon.status()["restarts"]) == (pid, 1)
        assert daemon.status()["pending"] == 10
        message = refused(timers)
        assert f"layout version {OTHER}" in message
        assert "install the same wheeld on both sides" in message
        command = [sys.executable, "-c", SUCCESSOR, str(daemon.directory), json.dumps(ids.tolist())]
        environment = {**os.environ, "PYTHONPATH": f"{other}:{os.environ.get('PYTHONPATH', '')}"}
        successor = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert successor.returncode == 0, successor.stderr
        assert json.loads(successor.stdout) == [OTHER, True, 10, True]
        (other / "installed").unlink()
        done = daemon.command("restart")
        assert done.returncode == 0, done.stderr + daemon.said()

        def is_back() -> bool:
            with suppress(LayoutMismatch, DaemonNotRunning):
                timers.poll(0.05)
            return bool(events)

        until(is_back, "back")
        assert (events[0].lost, events[0].restored, events[0].adopted) == (1, 9, True)
        assert [timers.cancel(int(id)) for id in ids] == [False] + [True] * 9
    daemon.stop()


def test_a_kept_end_and_a_start(daemon: Daemon, other: Path, tmp_path: Path) -> None:
    """A service manager restarts the daemon: the other build cannot use the memory, and the last
    snapshot has all of it."""
    daemon.start(state_dir=tmp_path, snapshot_every="1h")
    with connect(str(daemon.directory), worker="w", on_death="keep") as timers:
        timers.schedule_many([1000.0] * 5)
    assert daemon.command("stop", "--keep").returncode == 0
    assert daemon.wait() == 0
    (other / "installed").touch()
    assert "left its memory on purpose" in daemon.refused()
    daemon.start(state_dir=tmp_path)
    assert daemon.status()["pending"] == 5
    assert "restored 5 timers of 1 workers" in daemon.said()
    daemon.stop()
