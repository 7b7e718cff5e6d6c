"""Who may read a doorbell: who sleeps on it. A byte that is taken is a wake-up that is lost."""

import grp
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

from children import receive
from common_fixtures import daemon_process
from daemons import Daemon, stopped, until
from programs import SUPPORT
from remotes import Remote
from strangers import NOBODY, run_as_stranger
from wheeld.doctor import run as doctor
from wheeld_client import connect
from wheeld_core import control, runtime

daemon = daemon_process(started=False, for_all=True)


TAKE = """
import os, sys
for path in sys.argv[1:]:
    for flags in (os.O_RDONLY, os.O_RDWR):
        try:
            print("took", os.read(os.open(path, flags | os.O_NONBLOCK), 100))
        except PermissionError:
            pass
    os.write(os.open(path, os.O_WRONLY | os.O_NONBLOCK), b"1")
"""


def test_members_ring_and_take_nothing(daemon: Daemon) -> None:
    member = run_as_stranger()
    daemon.start(group=grp.getgrgid(NOBODY).gr_name)
    with connect(str(daemon.directory)) as timers:
        for _ in range(2):
            with Remote(daemon, member, worker="m") as first, Remote(daemon, member) as second:
                command = [*member, sys.executable, "-c", TAKE]
                command += map(str, daemon.directory.glob("*.fifo"))
                done = subprocess.run(command, capture_output=True, text=True, timeout=60)
                assert (done.stdout, done.stderr) == ("", "")
                second.ask("timers.schedule(0.01, 1, to='m') > 0")
                assert first.ask("receive(1)") == [1]
                timers.schedule(0.01, 2)
                assert receive(timers, 1)["cookie"].tolist() == [2]
            for bell in daemon.directory.glob("*.fifo"):
                bell.chmod(0o660)  # as an older daemon left them
            daemon.kill()
            daemon.start(group=grp.getgrgid(NOBODY).gr_name)


WATCH = """
class Waits(DelayedOperation):
    done = False
    def try_complete(self):
        return self.done and self.force_complete()
"""


def test_members_ring_each_other(daemon: Daemon) -> None:
    member = run_as_stranger()
    daemon.start(group=grp.getgrgid(NOBODY).gr_name)
    with Remote(daemon, member) as watcher, Remote(daemon, member) as other:
        for each in (watcher, other):
            each.ask(WATCH)
            each.ask("purgatory = Purgatory(timers, 'p')")
        watcher.ask("op = Waits(1000.0)")
        assert watcher.ask("purgatory.try_complete_else_watch(op, ['key'])") is False
        watcher.ask(
            "thread = threading.Thread(target=lambda: timers.dispatch(60)); op.done = True; "
            "thread.start()"
        )
        fifo = f"worker-{next(r for r in daemon.registry().names())}.fifo"
        assert (daemon.directory / fifo).is_fifo()
        until(lambda: other.ask("purgatory.check_and_complete('key')") is not None, "checked")
        watcher.ask("thread.join(60)")
        assert watcher.ask("[thread.is_alive(), op.is_completed]") == [False, True]


ALONE = """
import os, signal, sys
import numpy as np
from local_wheel import LocalWheel
from wheeld_core.views import record
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
with LocalWheel() as wheel:
    os.mkfifo(sys.argv[1])
    reader = os.open(sys.argv[1], os.O_RDONLY | os.O_NONBLOCK)
    bell = os.open(sys.argv[1], os.O_WRONLY | os.O_NONBLOCK)
    wheel.clock_bell = bell, os.dup(bell)
    timers = wheel.worker()
    header = record(wheel.wheel_memory, "wheel")
    header["sleep_until"], header["sleep_seq"] = 2**62, 1
    timers.schedule(1.0)
    assert os.read(reader, 10) == b"\\1"
    os.close(reader)
    header["sleep_seq"] = 3
    timers.schedule(1.0)
    assert not signal.sigpending() and signal.SIGPIPE not in signal.pthread_sigmask(0, ())
    print("rang", flush=True)
    os.kill(os.getpid(), signal.SIGPIPE)
"""


def test_a_bell_that_nobody_reads(tmp_path: Path) -> None:
    here = {**os.environ, "PYTHONPATH": ":".join([str(SUPPORT), *sys.path])}
    command = [sys.executable, "-c", ALONE, str(tmp_path / "bell")]
    done = subprocess.run(command, env=here, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGPIPE, "rang\n", "")


def doorbell(daemon: Daemon) -> doctor.Finding:
    found = doctor.run(str(daemon.directory)).findings
    return next(finding for finding in found if finding.name == "doorbell")


def test_an_alarm_wakes_the_clock(daemon: Daemon) -> None:
    daemon.start()
    with connect(str(daemon.directory)) as timers:
        bell = os.open(daemon.directory / "clock.fifo", os.O_RDWR | os.O_NONBLOCK)
        until(lambda: daemon.header("sleep_until") > 0, "the clock sleeps")
        with stopped(daemon.clock_pid):
            timers.schedule(0.0, 7)
            assert select.select([bell], [], [], 60)[0]
            assert os.read(bell, 10)
        until(lambda: doorbell(daemon).status == "failure", "doctor finds it")
        assert "1 timers" in doorbell(daemon).found
        os.close(bell)
        connection = control.Connection(daemon.directory)
        connection._socket.sendall(control.encode({"op": "alarm"}))
        assert receive(timers, 1)["cookie"].tolist() == [7]
        connection.close()
        assert doorbell(daemon).status == "ok"


FLOOD = """
import os, sys
bell = os.open(sys.argv[1], os.O_WRONLY)
while True:
    os.write(bell, b"1" * 4096)
"""


def test_the_clock_serves_while_somebody_rings_all_the_time(daemon: Daemon) -> None:
    daemon.start()
    bell = daemon.directory / runtime.CLOCK_FIFO
    with (
        connect(str(daemon.directory)) as timers,
        subprocess.Popen([sys.executable, "-c", FLOOD, bell]) as flood,
    ):
        try:
            for number in range(20):
                timers.schedule(0.001, number)
                assert timers.poll(60)["cookie"].tolist() == [number]
        finally:
            flood.kill()
