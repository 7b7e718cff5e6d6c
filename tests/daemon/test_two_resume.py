"""A worker with two connections for a moment: two of its threads take the lost one up at once."""

import socket
import threading

from children import receive
from common_fixtures import connected, daemon_process
from daemons import LONG, Daemon, until
from wheeld_client import DaemonNotRunning, Timers
from wheeld_core import control

daemon = daemon_process(max_workers=6)
timers = connected(worker="w", reconnect_for=LONG)


def serves(daemon: Daemon, timers: Timers) -> None:
    for _ in range(3):
        daemon.status()
    timers.schedule(0.0, 5)
    assert receive(timers, 1)["cookie"].tolist() == [5]


def test_one_thread_takes_the_connection_up(daemon: Daemon, timers: Timers) -> None:
    daemon.kill()
    daemon.start()
    go_on, taken = timers._go_on, list[control.Connection]()

    def comes_late() -> None:
        for _ in range(100):  # as often as the daemon needs for its answer
            daemon.status()
            if timers._reconnect() is None:
                return

    def slowly(connection: control.Connection) -> None:
        taken.append(connection)
        if len(taken) == 1:
            other = threading.Thread(target=comes_late)
            other.start()
            other.join(LONG)
            assert not other.is_alive()
        go_on(connection)

    timers._go_on = slowly  # type: ignore[method-assign]
    until(lambda: timers._reconnect() is None, "reconnected")
    assert len(taken) == 1
    serves(daemon, timers)


def test_a_thread_that_comes_too_late(daemon: Daemon, timers: Timers) -> None:
    daemon.kill()
    daemon.start()
    until(lambda: timers._reconnect() is None, "reconnected")
    stands = timers.control_fileno()
    for _ in range(20):
        assert timers._reconnect() is None
        daemon.status()
    assert timers.control_fileno() == stands
    serves(daemon, timers)


def test_a_worker_has_gone_with_its_last_connection(daemon: Daemon, timers: Timers) -> None:
    assert timers._reconnector is not None
    request = {key: value for key, value in timers._reconnector._resume.items() if key != "op"}
    for _ in range(2):
        second = control.Connection(daemon.directory)
        second.request("resume", **request)
        second.close()
        serves(daemon, timers)
    second = control.Connection(daemon.directory)
    second.request("resume", **request)
    timers._connection._socket.shutdown(socket.SHUT_RDWR)
    for _ in range(3):
        daemon.status()
    assert timers.schedule(1000.0)
    second.close()

    def refused() -> bool:
        try:
            return timers.pending < 0
        except DaemonNotRunning:
            return True

    until(refused, "fenced")
