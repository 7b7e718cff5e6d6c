"""A process inherits ignored signals, descriptors, TMPDIR, umask, the number 1."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from common_fixtures import daemon_process
from daemons import LONG, Daemon, end_of, is_running, until
from wheeld_client import connect

daemon = daemon_process(started=False, forked=False)

IGNORING = [
    sys.executable, "-c",
    "import os, signal, sys\n"
    "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
    "os.execv(sys.executable, [sys.executable, '-m', 'wheeld', *sys.argv[1:]])",
]  # fmt: skip


def test_a_clock_is_replaced_although_sigchld_was_ignored(daemon: Daemon) -> None:
    daemon.program = IGNORING
    daemon.start()
    with connect(str(daemon.directory)) as timers:
        for cookie in range(2):
            clock = daemon.status()["clock_pid"]
            over = end_of(clock)
            os.kill(clock, signal.SIGKILL)
            over()
            timers.schedule(0.01, cookie)
            assert timers.poll(LONG)["cookie"].tolist() == [cookie]
    assert daemon.process is not None
    daemon.process.terminate()
    assert daemon.process.wait(LONG) == 0, daemon.said()


FORK_SERVER = """
import os, signal, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
sys.stderr = os.fdopen(os.dup(2), "w")
for fd in map(int, sys.argv[1:]):
    os.close(fd)
import wheeld
from wheeld_client import connect
for _ in range(2):
    with (wheeld.ForkServer() as server, server.embedded() as forked, wheeld.embedded() as daemon):
        for name in (forked, daemon):
            with connect(name) as timers:
                assert timers._connection.fileno() > 2
                timers.schedule(0.01, 3)
                assert timers.poll(60)["cookie"].tolist() == [3]
                taken = {fd for fd in (0, 1, 2) if os.path.exists(f"/proc/self/fd/{fd}")}
                assert not taken & set(map(int, sys.argv[1:])), taken
os._exit(7)
"""


@pytest.mark.parametrize("closed", [[], ["1"], ["2"], ["1", "2"], ["0", "1", "2"]])
def test_a_client_and_its_daemons_leave_the_standard_descriptors(closed: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORK_SERVER, *closed], capture_output=True, text=True, timeout=LONG
    )
    assert done.returncode == 7, done.stderr


def test_a_long_tmpdir(tmp_path: Path) -> None:
    usual = tmp_path / ("d" * 60) / ("e" * 60)
    usual.mkdir(parents=True)
    code = (
        "import wheeld\nfrom wheeld_client import connect\n"
        "with wheeld.embedded() as daemon, connect(daemon) as timers:\n"
        "    timers.schedule(0.01, 3)\n    print(timers.poll(60)['cookie'].tolist())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "TMPDIR": str(usual)},
        capture_output=True,
        text=True,
        timeout=LONG,
    )
    assert done.stdout == "[3]\n", done.stderr
    assert list(usual.iterdir()) == []


def test_a_runtime_directory_that_is_too_long(daemon: Daemon, tmp_path: Path) -> None:
    said = daemon.refused("--runtime-dir", str(tmp_path / ("d" * 100)))
    assert "at most 107 fit; give a shorter --runtime-dir" in said


ORPHANS = """
import os, sys, time
if os.fork():
    os.execv(sys.executable, [sys.executable, "-m", "wheeld", *sys.argv[1:]])
read, write = os.pipe()
if not os.fork():
    if not os.fork():
        os.close(write)
        os.read(read, 1)  # until the parent has ended, and process 1 is it now
        os._exit(0)
    os._exit(0)
os.wait()
os.close(write)
os.close(read)
while True:
    time.sleep(60)
"""


def test_process_1_waits_for_orphans_and_hands_signals_on(daemon: Daemon) -> None:
    apart = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if os.getuid() != 0 or subprocess.run([*apart, "true"], capture_output=True).returncode:
        pytest.skip("no PID namespace can be made")
    daemon.program = [*apart, sys.executable, "-c", ORPHANS]
    process = daemon.launch()
    until(lambda: process.poll() is not None or "serving" in daemon.said(), "serving")
    first = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().strip()

    def zombies() -> list[str]:
        children = Path(f"/proc/{first}/task/{first}/children").read_text().split()
        return [pid for pid in children if not is_running(int(pid))]

    until(lambda: not zombies(), "no zombies")
    os.kill(int(first), signal.SIGTERM)
    assert process.wait(LONG) == 0, daemon.said()
    assert os.listdir(daemon.base) == [daemon.log.name]


UMASK = """
import os, subprocess, sys
os.umask(0o777)
import wheeld
from wheeld_client import connect
with wheeld.ForkServer() as server, server.embedded() as forked, wheeld.embedded() as daemon:
    for name in (forked, daemon):
        with connect(name, group="g") as timers:
            timers.schedule(0.01)
            assert len(timers.poll(60)) == 1
            for command in (["schedule", "1s", "--to", "group:g"], ["restart"], ["fsck"]):
                words = [sys.executable, "-m", "wheeld", *command, "--name", name]
                subprocess.run(words, check=True)
place = sys.argv[1]
where = ["--name", "u", "--runtime-dir", place]
options = ["--state-dir", place + "/state", "--trace", place + "/trace"]
start = [sys.executable, "-m", "wheeld", "start", *where, *options]
for _ in range(2):
    daemon = subprocess.Popen(start, stderr=subprocess.PIPE, text=True)
    assert any("serving" in line for line in daemon.stderr)
    subprocess.run([sys.executable, "-m", "wheeld", "stop", *where], check=True)
    assert daemon.wait() == 0
"""


def test_a_umask_that_forbids_everything(tmp_path: Path) -> None:
    as_others = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"]
    done = subprocess.run(
        [*(as_others if os.getuid() == 0 else []), sys.executable, "-c", UMASK, str(tmp_path)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
