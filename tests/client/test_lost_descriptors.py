"""A process closes all its descriptors and lives on (to become a daemon, say).

The slots of its workers are given to nobody while it lives, their calls are refused, and files that
have those numbers now are neither written to nor closed. And: clients that are let go of; what
close() gives back.
"""

import gc
import platform
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from children import in_child, receive
from common_fixtures import shared_daemon
from daemons import Daemon, map_segment, stopped, until
from remotes import Remote, RemoteError
from wheeld_client import Timers, WheelFull, connect
from wheeld_core import _native, control
from wheeld_core.views import record

CAPACITY = 1024
CLOSE_ALL = "os.closerange(3, 4096)"
REFUSED = r"DaemonNotRunning.*close\(\) it.*connect\(\)"
CALLS = (
    "timers.schedule(1.0)",
    "timers.schedule_many([1.0])",
    "timers.cancel(id)",
    "timers.cancel_many([id])",
    "timers.reschedule(id, 1.0)",
    "timers.poll()",
    "timers.poll(60.0)",
    "timers.poll(None)",
    "timers.dispatch(60.0)",
    "timers.call_later(1.0, print)",
    "timers.fileno()",
    "timers.stats()",
    "timers.workers()",
)


shared = shared_daemon()


@pytest.fixture
def daemon(shared: Daemon) -> Iterator[Daemon]:
    yield shared
    until(lambda: shared.workers() == {}, "all gone")
    with connect(str(shared.directory)) as timers:
        assert fill(timers) == CAPACITY
    until(lambda: shared.workers() == {}, "gone, too")


def fill(timers: Timers) -> int:
    count = 0
    for size in (64, 1):
        try:
            while True:
                timers.schedule_many([1000.0] * size)
                count += size
        except WheelFull:
            pass
    return count


def state(daemon: Daemon, name: str) -> str | None:
    found: str | None = daemon.workers().get(name, {}).get("state")
    return found


def lose(daemon: Daemon, worker: Remote, name: str) -> None:
    worker.ask(CLOSE_ALL)
    until(lambda: state(daemon, name) == "fenced", "fenced")


def rings(worker: Remote) -> bool:
    try:
        worker.ask("timers.schedule(0.0001)")
    except RemoteError:
        return False
    return True


def test_its_calls_are_refused_and_its_timers_stay_its_own(daemon: Daemon) -> None:
    """While its process lives nobody else gets a slot of a pending timer; when that ends, all.
    Others get its free slots meanwhile."""
    with Remote(daemon, worker="lost") as lost:
        lost.ask("ids = timers.schedule_many(np.full(640, 1000.0)); id = int(ids[0])")
        lost.ask("won = timers.cancel_many(ids[ids % 64 != 0])")
        lose(daemon, lost, "lost")
        with pytest.raises(RemoteError, match=REFUSED):
            lost.ask(CALLS[0])  # it holds free slots, and nothing else would keep it from that
        with connect(str(daemon.directory), worker="other") as other:
            armed = fill(other)
            assert armed == CAPACITY - 10
            for call in CALLS:
                with pytest.raises(RemoteError, match=REFUSED):
                    lost.ask(call)
            assert other.pending == armed
            lost.kill()
            until(lambda: "lost" not in daemon.workers(), "gone")
            assert fill(other) == CAPACITY - armed
    assert daemon.status()["counters"]["dropped"] >= 10


def test_the_log_says_so(daemon: Daemon) -> None:
    with Remote(daemon, worker="logged") as worker:
        lose(daemon, worker, "logged")
        until(
            lambda: "worker logged (pid" in daemon.said() and "still runs" in daemon.said(), "told"
        )


def test_no_successor_while_it_lives(daemon: Daemon) -> None:
    with Remote(daemon, worker="kept", on_death="keep") as first:
        first.ask("timers.schedule_many([0.0] * 5, np.arange(5)).tolist()")
        first.ask("timers.schedule(1000.0)")
        lose(daemon, first, "kept")
        with pytest.raises(ValueError, match="already connected"):
            connect(str(daemon.directory), worker="kept", on_death="keep")
        first.kill()
        with connect(str(daemon.directory), worker="kept") as successor:
            assert successor.adopted
            assert sorted(receive(successor, 5)["cookie"].tolist()) == list(range(5))
            assert successor.pending == 1


def test_it_closes_and_comes_back(daemon: Daemon) -> None:
    with Remote(daemon, worker="again", on_death="keep") as worker:
        worker.ask("timers.schedule(1000.0)")
        lose(daemon, worker, "again")
        worker.ask("timers.close()")
        assert state(daemon, "again") == "kept"
        worker.ask(f"timers = connect({str(daemon.directory)!r}, worker='again')")
        assert worker.ask("(timers.adopted, timers.pending)") == [True, 1]
        assert state(daemon, "again") == "active"


def test_a_group_does_not_count_on_it(daemon: Daemon) -> None:
    with (
        Remote(daemon, worker="lost", group="g") as lost,
        connect(str(daemon.directory), group="g") as member,
    ):
        lost.ask("len(timers.poll())")
        member.poll()
        lose(daemon, lost, "lost")
        member.schedule_many([0.0] * 20, to="group:g")
        assert len(receive(member, 20)) == 20


@pytest.mark.parametrize("call", CALLS)
def test_files_of_others_under_its_numbers(daemon: Daemon, call: str) -> None:
    with Remote(daemon, worker="numbers") as worker:
        worker.ask("id = timers.schedule(1000.0); timers.fileno()")
        with stopped(daemon.pid):
            worker.ask(CLOSE_ALL)
            worker.ask(
                "import tempfile, socket; path = tempfile.mktemp(); pair = socket.socketpair();"
                "pair[1].send(b'for the user'); file = open(path, 'w+b'); file.write(b'x' * 4096);"
                "file.flush(); fds = [os.open(path, os.O_RDWR) for _ in range(40)]"
            )
            until(lambda: not rings(worker), "found out")
            with pytest.raises(RemoteError, match=r"closed by other code.*connect\(\)"):
                worker.ask(call)
        worker.ask("timers.close(); del timers; import gc; gc.collect()")
        assert worker.ask("[os.fstat(fd).st_size for fd in fds] == [4096] * 40")
        assert worker.ask("open(path, 'rb').read() == b'x' * 4096")
        assert worker.ask("[os.lseek(fd, 0, os.SEEK_CUR) for fd in fds] == [0] * 40")
        assert worker.ask("pair[0].recv(100, socket.MSG_DONTWAIT).decode()") == "for the user"
        worker.ask("os.unlink(path)")
        until(lambda: daemon.workers() == {}, "gone")


def test_a_fence_outlives_the_supervisor(runtime_dir: Path, daemon_name: str) -> None:
    """The next one finds it, and waits for the end of the process, too; who has a connection is not
    taken for one without."""
    with Daemon(runtime_dir, daemon_name) as daemon:
        daemon.start()
        with (
            Remote(daemon, worker="lost", on_death="keep") as lost,
            Remote(daemon, worker="well") as well,
        ):
            lost.ask("timers.schedule(1000.0)")
            lose(daemon, lost, "lost")
            daemon.kill()
            well.ask("timers.schedule(1000.0)")
            with pytest.raises(RemoteError, match="no longer serves this worker"):
                lost.ask("timers.schedule(1.0)")
            daemon.start()
            well.ask("timers.schedule(1000.0)")
            assert (state(daemon, "lost"), state(daemon, "well")) == ("fenced", "active")
            lost.kill()
            until(lambda: state(daemon, "lost") == "kept", "kept")
            assert well.ask("timers.pending") == 2


WITHOUT_MAIN_THREAD = """
import ctypes, os, platform, sys, threading, time
from wheeld_client import connect
from wheeld_core.errors import WheelError
timers = connect(sys.argv[1], worker="headless", reconnect_for=60)
ids = timers.schedule_many([1000.0] * 64)
def go_on():
    while open(f"/proc/{os.getpid()}/stat").read().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.01)
    os.write(1, b"headless\\n")
    os.read(0, 1)
    try:
        timers.poll(0.0)
        said = f"{sum(timers.cancel_many(ids))} of 64"
    except WheelError as error:
        said = repr(error)
    os.write(1, said.encode() + b"\\n")
    os.read(0, 1)
    os._exit(0)
threading.Thread(target=go_on).start()
libc = ctypes.CDLL(None)
libc.syscall({"x86_64": 60, "aarch64": 93}[platform.machine()], 0)
"""


@pytest.mark.skipif(
    platform.machine() not in ("x86_64", "aarch64"), reason="the number of a system call"
)
def test_a_process_whose_first_thread_has_ended_is_not_dead(
    runtime_dir: Path, daemon_name: str
) -> None:
    """/proc calls it a zombie, and its other threads go on in the memory: the next supervisor asks
    the pidfd before it gives others what is in its hands."""
    with Daemon(runtime_dir, daemon_name) as daemon:
        daemon.start()
        command = [sys.executable, "-c", WITHOUT_MAIN_THREAD, str(daemon.directory)]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        ) as worker:
            assert worker.stdin is not None
            assert worker.stdout is not None
            assert worker.stdout.readline() == b"headless\n"
            daemon.kill()
            daemon.start()
            assert state(daemon, "headless") == "active"
            worker.stdin.write(b"x")
            assert worker.stdout.readline() == b"64 of 64\n"
            worker.stdin.write(b"x")
        until(lambda: daemon.workers() == {}, "gone")


# -- the end of a client ------------------------------------------------------------


def test_a_client_that_is_let_go_of(daemon: Daemon) -> None:
    clients = [connect(str(daemon.directory), worker="dropped")]
    clients[0].schedule(1000.0)
    clients.clear()
    with pytest.warns(ResourceWarning):
        gc.collect()
    until(lambda: daemon.workers() == {}, "gone")


def test_a_child_does_not_say_goodbye(daemon: Daemon) -> None:
    clients = [connect(str(daemon.directory), worker="parent")]
    freed = weakref.ref(clients[0])

    def drop() -> bool:
        clients.clear()
        gc.collect()
        return freed() is None

    assert in_child(drop) is True
    row = daemon.workers()["parent"]["row"]
    memory = map_segment(daemon.segment(f"worker-{row}"), _native.KIND_WORKER)
    assert record(memory, "worker")["goodbye"] == 0
    assert clients[0].schedule(1000.0)
    clients[0].close()


@pytest.mark.parametrize("op", ["hello", "hello, bound"])
def test_a_hello_without_a_client(daemon: Daemon, op: str) -> None:
    connection = control.Connection(daemon.directory)
    connection.request(
        "hello", layout=_native.LAYOUT_VERSION, fingerprint=_native.FINGERPRINT, worker=op
    )
    assert state(daemon, op) == "active"
    connection.close()
    until(lambda: daemon.workers() == {}, "gone")


FEW = """
import gc, resource, sys
from wheeld_client import connect
gc.disable()
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
maps = lambda: sum("/dev/shm/wheeld" in line for line in open("/proc/self/maps"))
open_files = lambda: len(__import__("os").listdir("/proc/self/fd"))
before = open_files()
for i in range(1000):
    with connect(sys.argv[1]) as timers:
        timers.schedule(1000.0)
    assert open_files() == before, (i, open_files(), before)
    assert maps() == 0
print("well")
"""


def test_a_thousand_connects(daemon: Daemon) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FEW, str(daemon.directory)], capture_output=True, text=True
    )
    assert done.stdout == "well\n", done.stderr
